/* MetalTypes.h: constants and structs of Metal's interface; see Metal.h. */
#pragma once

typedef NS_ENUM(NSInteger, MTLGPUFamily) {
    MTLGPUFamilyApple7 = 1007,
    MTLGPUFamilyApple8 = 1008,
    MTLGPUFamilyApple9 = 1009,
    MTLGPUFamilyApple10 = 1010,
};
typedef NS_ENUM(NSUInteger, MTLStorageMode) { MTLStorageModeShared = 0, MTLStorageModePrivate = 2 };
typedef NS_ENUM(NSUInteger, MTLHazardTrackingMode) { MTLHazardTrackingModeUntracked = 1 };
typedef NS_OPTIONS(NSUInteger, MTLResourceOptions) {
    MTLResourceStorageModeShared = 0,
    MTLResourceStorageModePrivate = 32,
    MTLResourceHazardTrackingModeUntracked = 256,
};
typedef NS_OPTIONS(NSUInteger, MTLResourceUsage) { MTLResourceUsageRead = 1, MTLResourceUsageWrite = 2 };
typedef NS_ENUM(NSInteger, MTLHeapType) { MTLHeapTypeAutomatic = 0, MTLHeapTypePlacement = 1 };
typedef NS_ENUM(NSInteger, MTLSparsePageSize) {
    MTLSparsePageSize16 = 101,
    MTLSparsePageSize64 = 102,
    MTLSparsePageSize256 = 103,
};
typedef NS_ENUM(NSUInteger, MTLSparseTextureMappingMode) {
    MTLSparseTextureMappingModeMap = 0,
    MTLSparseTextureMappingModeUnmap = 1,
};
typedef NS_ENUM(NSUInteger, MTLDataType) { MTLDataTypeUInt = 33 };
typedef NS_ENUM(NSUInteger, MTLLanguageVersion) { MTLLanguageVersion3_1 = 0x30001 };
typedef NS_ENUM(NSInteger, MTLMathMode) { MTLMathModeSafe = 0, MTLMathModeFast = 2 };
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) {
    MTLPipelineOptionNone = 0,
    MTLPipelineOptionFailOnBinaryArchiveMiss = 4,
};
typedef NS_ENUM(NSUInteger, MTLDispatchType) { MTLDispatchTypeSerial = 0, MTLDispatchTypeConcurrent = 1 };
typedef NS_OPTIONS(NSUInteger, MTLBarrierScope) { MTLBarrierScopeBuffers = 1 };
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) {
    MTLCommandBufferStatusNotEnqueued = 0,
    MTLCommandBufferStatusCommitted = 2,
    MTLCommandBufferStatusCompleted = 4,
    MTLCommandBufferStatusError = 5,
};
typedef NS_ENUM(NSInteger, MTLCaptureDestination) { MTLCaptureDestinationGPUTraceDocument = 2 };

typedef struct {
    NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth)
{
    return (MTLSize){width, height, depth};
}

typedef struct {
    uint32_t threadgroupsPerGrid[3];
} MTLDispatchThreadgroupsIndirectArguments;

/* In tiles. */
typedef struct {
    MTLSparseTextureMappingMode mode;
    NSRange bufferRange;
    NSUInteger heapOffset;
} MTL4UpdateSparseBufferMappingOperation;

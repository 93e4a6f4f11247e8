/* Metal.h: the part of Metal's interface that shim/metal uses, in our own text. Names, types, values and
 * availability are facts of the API; test_api.py compares them with Apple's metadata. */
#pragma once

#import <Foundation/Foundation.h>

#import "MetalTypes.h"

#pragma clang assume_nonnull begin

@protocol MTLDevice, MTLBuffer, MTLHeap, MTLLibrary, MTLFunction, MTLBinaryArchive,
    MTLComputePipelineState, MTLCommandQueue, MTLCommandBuffer, MTLComputeCommandEncoder,
    MTLBlitCommandEncoder, MTLEvent, MTLSharedEvent, MTLResidencySet, MTL4CommandQueue;
@class MTLHeapDescriptor, MTLCompileOptions, MTLFunctionConstantValues, MTLResidencySetDescriptor,
    MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineReflection;

extern __attribute__((ns_returns_retained)) id<MTLDevice> _Nullable MTLCreateSystemDefaultDevice(void);

API_AVAILABLE(macos(15.0))
@protocol MTLAllocation <NSObject>
@property(readonly) NSUInteger allocatedSize;
@end

@protocol MTLDevice <NSObject>
@property(readonly) NSString *name;
@property(readonly) NSUInteger maxBufferLength;
@property(readonly) NSUInteger maxThreadgroupMemoryLength;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
@property(readonly) BOOL supportsPlacementSparse API_AVAILABLE(macos(26.4));
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (nullable id<MTLCommandQueue>)newCommandQueue;
- (nullable id<MTL4CommandQueue>)newMTL4CommandQueue API_AVAILABLE(macos(26.0));
- (nullable id<MTLSharedEvent>)newSharedEvent;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (nullable id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                            length:(NSUInteger)length
                                           options:(MTLResourceOptions)options
                                       deallocator:(nullable void (^)(void *, NSUInteger))deallocator;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                                      options:(MTLResourceOptions)options
                      placementSparsePageSize:(MTLSparsePageSize)size API_AVAILABLE(macos(26.0));
- (nullable id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor *)descriptor;
- (nullable id<MTLLibrary>)newLibraryWithSource:(NSString *)source
                                        options:(nullable MTLCompileOptions *)options
                                          error:(NSError *_Nullable *_Nullable)error;
- (nullable id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLComputePipelineReflection *_Nullable *_Nullable)reflection
                                    error:(NSError *_Nullable *_Nullable)error;
- (nullable id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor
                                                          error:(NSError *_Nullable *_Nullable)error;
- (nullable id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor
                                                        error:(NSError *_Nullable *_Nullable)error
    API_AVAILABLE(macos(15.0));
@end

@protocol MTLResource <MTLAllocation>
@end

@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
@property(readonly) uint64_t gpuAddress;
- (void *)contents;
@end

@protocol MTLHeap <MTLAllocation>
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                                      options:(MTLResourceOptions)options
                                       offset:(NSUInteger)offset;
@end

@protocol MTLFunction <NSObject>
@property(readonly) NSString *name;
@end

@protocol MTLLibrary <NSObject>
- (nullable id<MTLFunction>)newFunctionWithName:(NSString *)name
                                 constantValues:(MTLFunctionConstantValues *)values
                                          error:(NSError *_Nullable *_Nullable)error;
@end

@protocol MTLBinaryArchive <NSObject>
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                            error:(NSError *_Nullable *_Nullable)error;
- (BOOL)serializeToURL:(NSURL *)url error:(NSError *_Nullable *_Nullable)error;
@end

@protocol MTLComputePipelineState <NSObject>
@property(nullable, readonly) NSString *label;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger staticThreadgroupMemoryLength;
@end

@protocol MTLCommandQueue <NSObject>
- (nullable id<MTLCommandBuffer>)commandBuffer;
- (void)addResidencySet:(id<MTLResidencySet>)set API_AVAILABLE(macos(15.0));
@end

@protocol MTLCommandBuffer <NSObject>
@property(readonly) MTLCommandBufferStatus status;
@property(nullable, readonly) NSError *error;
@property(readonly) CFTimeInterval GPUStartTime;
@property(readonly) CFTimeInterval GPUEndTime;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (nullable id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)addCompletedHandler:(void (^)(id<MTLCommandBuffer>))block;
- (void)commit;
- (void)waitUntilCompleted;
@end

@protocol MTLCommandEncoder <NSObject>
- (void)endEncoding;
- (void)pushDebugGroup:(NSString *)name;
- (void)popDebugGroup;
@end

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(nullable id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)dispatchThreadgroupsWithIndirectBuffer:(id<MTLBuffer>)buffer
                          indirectBufferOffset:(NSUInteger)offset
                         threadsPerThreadgroup:(MTLSize)threads;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage;
@end

@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value;
- (void)copyFromBuffer:(id<MTLBuffer>)source
          sourceOffset:(NSUInteger)sourceOffset
              toBuffer:(id<MTLBuffer>)target
     destinationOffset:(NSUInteger)targetOffset
                  size:(NSUInteger)size;
@end

@protocol MTLEvent <NSObject>
@end

@protocol MTLSharedEvent <MTLEvent>
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds API_AVAILABLE(macos(12.0));
@end

API_AVAILABLE(macos(15.0))
@protocol MTLResidencySet <NSObject>
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
- (void)endResidency;
@end

API_AVAILABLE(macos(26.0))
@protocol MTL4CommandQueue <NSObject>
- (void)signalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)waitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)updateBufferMappings:(id<MTLBuffer>)buffer
                        heap:(nullable id<MTLHeap>)heap
                  operations:(const MTL4UpdateSparseBufferMappingOperation *)operations
                       count:(NSUInteger)count;
@end

@interface MTLHeapDescriptor : NSObject
@property(nonatomic) NSUInteger size;
@property(nonatomic) MTLStorageMode storageMode;
@property(nonatomic) MTLHazardTrackingMode hazardTrackingMode;
@property(nonatomic) MTLHeapType type;
@property(nonatomic) MTLSparsePageSize maxCompatiblePlacementSparsePageSize API_AVAILABLE(macos(26.0));
@end

@interface MTLCompileOptions : NSObject
@property(nonatomic) MTLLanguageVersion languageVersion;
@property(nonatomic) MTLMathMode mathMode API_AVAILABLE(macos(15.0));
@end

@interface MTLFunctionConstantValues : NSObject
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@interface MTLBinaryArchiveDescriptor : NSObject
@property(nonatomic, copy, nullable) NSURL *url;
@end

@interface MTLComputePipelineDescriptor : NSObject
@property(nonatomic, copy, nullable) NSString *label;
@property(nonatomic, strong, nullable) id<MTLFunction> computeFunction;
@property(nonatomic, copy, nullable) NSArray<id<MTLBinaryArchive>> *binaryArchives;
@end

API_AVAILABLE(macos(15.0))
@interface MTLResidencySetDescriptor : NSObject
@property(nonatomic) NSUInteger initialCapacity;
@end

@interface MTLCaptureDescriptor : NSObject
@property(nonatomic, strong, nullable) id captureObject;
@property(nonatomic) MTLCaptureDestination destination;
@property(nonatomic, copy, nullable) NSURL *outputURL;
@end

@interface MTLCaptureManager : NSObject
+ (MTLCaptureManager *)sharedCaptureManager;
- (BOOL)startCaptureWithDescriptor:(MTLCaptureDescriptor *)descriptor
                             error:(NSError *_Nullable *_Nullable)error;
- (void)stopCapture;
@end

#pragma clang assume_nonnull end

/* library.m: libraries compiled from source at run time, and pipelines for the kernels that are asked
 * for, from the archive of an earlier process where it has them. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "metal.h"

@implementation MtlqLibrary
@end

static const char *text_of(NSError *error)
{
    NSString *text = error.localizedDescription;
    return text ? text.UTF8String : "no reason given";
}

/* ---- archives ------------------------------------------------------------------------------ */

/* FNV-1a, 64 bits. */
static uint64_t hash_bytes(uint64_t hash, const char *bytes, uint64_t num_bytes)
{
    for (uint64_t i = 0; i < num_bytes; i++)
        hash = (hash ^ (uint8_t)bytes[i]) * 1099511628211u;
    return hash;
}

/* An archive holds machine code: of this text, for this GPU, by this system's compiler. */
static NSURL *archive_file(MtlqMetal *metal, const char *source, uint64_t num_bytes)
{
    const char *gpu = metal->gpu.name.UTF8String;
    const char *system = [NSProcessInfo processInfo].operatingSystemVersionString.UTF8String;
    uint64_t hash = hash_bytes(14695981039346656037u, source, num_bytes);
    hash = hash_bytes(hash, gpu, strlen(gpu) + 1);
    hash = hash_bytes(hash, system, strlen(system) + 1);
    NSString *name = [NSString stringWithFormat:@"%016" PRIx64 ".binarchive", hash];
    return [metal->archives URLByAppendingPathComponent:name];
}

static id<MTLBinaryArchive> open_archive(MtlqMetal *metal, NSURL *file)
{
    MTLBinaryArchiveDescriptor *descriptor = [MTLBinaryArchiveDescriptor new];
    if ([[NSFileManager defaultManager] fileExistsAtPath:file.path])
        descriptor.url = file;
    id<MTLBinaryArchive> archive = [metal->gpu newBinaryArchiveWithDescriptor:descriptor error:NULL];
    if (archive || !descriptor.url)
        return archive;
    descriptor.url = nil; /* what is there cannot be used: it is replaced */
    return [metal->gpu newBinaryArchiveWithDescriptor:descriptor error:NULL];
}

/* A rename, so that another process finds the old archive or the new one. */
static void save_archive(MtlqLibrary *library)
{
    NSString *name = [NSString stringWithFormat:@"%@.%d", library->file.path, (int)getpid()];
    NSURL *partial = [NSURL fileURLWithPath:name];
    if ([library->archive serializeToURL:partial error:NULL])
        rename(partial.path.UTF8String, library->file.path.UTF8String);
}

/* ---- libraries ----------------------------------------------------------------------------- */

static MTLCompileOptions *compile_options(void)
{
    MTLCompileOptions *options = [MTLCompileOptions new];
    options.languageVersion = MTLLanguageVersion3_1;
    if (@available(macOS 15.0, *))
        options.mathMode = MTLMathModeFast;
    return options; /* before macOS 15 fast is the default, and its setter is deprecated */
}

int32_t metal_library_create(mtlq_library *library, const char *source, uint64_t num_bytes)
{
    METAL_BEGIN
    MtlqMetal *metal = metal_of(library->object.device);
    if (!source || !num_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "library_create: the metal device needs source");
    NSString *text = [[NSString alloc] initWithBytes:source
                                              length:num_bytes
                                            encoding:NSUTF8StringEncoding];
    if (!text)
        return mtlq_fail(MTLQ_E_ARGUMENT, "library_create: the source is not UTF-8");
    NSError *error = nil;
    MtlqLibrary *made = [MtlqLibrary new];
    id<MTLLibrary> compiled = [metal->gpu newLibraryWithSource:text
                                                       options:compile_options()
                                                         error:&error];
    if (!made || !compiled)
        return mtlq_fail(MTLQ_E_ARGUMENT, "library_create: %s", text_of(error));
    made->library = compiled;
    if (metal->archives) {
        made->file = archive_file(metal, source, num_bytes);
        made->archive = open_archive(metal, made->file);
    }
    library->handle = (__bridge_retained void *)made;
    return MTLQ_OK;
    METAL_END("library_create")
}

void metal_library_free(mtlq_library *library)
{
    @autoreleasepool {
        MtlqLibrary *made = (__bridge_transfer MtlqLibrary *)library->handle;
        library->handle = NULL;
        if (made->archiveChanged)
            save_archive(made);
    }
}

/* ---- pipelines ----------------------------------------------------------------------------- */

/* From the archive; compiled, and added to it, if it has none. */
static id<MTLComputePipelineState> new_pipeline(MtlqMetal *metal, MtlqLibrary *library,
                                                MTLComputePipelineDescriptor *descriptor,
                                                NSError **error)
{
    if (library->archive) {
        id<MTLBinaryArchive> archive = library->archive;
        descriptor.binaryArchives = [NSArray arrayWithObjects:&archive count:1];
        id<MTLComputePipelineState> found = [metal->gpu
            newComputePipelineStateWithDescriptor:descriptor
                                          options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                       reflection:NULL
                                            error:NULL];
        if (found)
            return found;
        if ([archive addComputePipelineFunctionsWithDescriptor:descriptor error:NULL])
            library->archiveChanged = true;
    }
    return [metal->gpu newComputePipelineStateWithDescriptor:descriptor
                                                     options:MTLPipelineOptionNone
                                                  reflection:NULL
                                                       error:error];
}

static id<MTLFunction> new_function(MtlqLibrary *library, const char *name,
                                    const mtlq_constant *constants, uint32_t num_constants,
                                    NSError **error)
{
    MTLFunctionConstantValues *values = [MTLFunctionConstantValues new];
    NSString *text = [NSString stringWithUTF8String:name];
    if (!values || !text)
        return nil;
    for (uint32_t i = 0; i < num_constants; i++)
        [values setConstantValue:&constants[i].value
                            type:MTLDataTypeUInt
                         atIndex:constants[i].index];
    return [library->library newFunctionWithName:text constantValues:values error:error];
}

int32_t metal_pipeline_create(mtlq_pipeline *pipeline, const char *name,
                              const mtlq_constant *constants, uint32_t num_constants)
{
    METAL_BEGIN
    MtlqMetal *metal = metal_of(pipeline->object.device);
    MtlqLibrary *library = (__bridge MtlqLibrary *)pipeline->library->handle;
    NSError *error = nil;
    id<MTLFunction> function = new_function(library, name, constants, num_constants, &error);
    if (!function)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "no metal kernel \"%.60s\": %s", name, text_of(error));
    MTLComputePipelineDescriptor *descriptor = [MTLComputePipelineDescriptor new];
    descriptor.label = [NSString stringWithUTF8String:name];
    descriptor.computeFunction = function;
    id<MTLComputePipelineState> made =
        descriptor ? new_pipeline(metal, library, descriptor, &error) : nil;
    if (!made)
        return mtlq_fail(MTLQ_E_NOMEM, "kernel \"%.60s\": %s", name, text_of(error));
    uint64_t group_bytes = made.staticThreadgroupMemoryLength;
    if (group_bytes > metal->gpu.maxThreadgroupMemoryLength)
        return mtlq_fail(MTLQ_E_LIMIT, "kernel \"%.60s\" takes %llu bytes of threadgroup memory, %s "
                         "has %llu", name, (unsigned long long)group_bytes,
                         metal->gpu.name.UTF8String,
                         (unsigned long long)metal->gpu.maxThreadgroupMemoryLength);
    pipeline->kernel = (__bridge_retained void *)made;
    return MTLQ_OK;
    METAL_END("pipeline_create")
}

void metal_pipeline_free(mtlq_pipeline *pipeline)
{
    @autoreleasepool {
        id<MTLComputePipelineState> made =
            (__bridge_transfer id<MTLComputePipelineState>)(void *)(uintptr_t)pipeline->kernel;
        (void)made;
        pipeline->kernel = NULL;
    }
}

/* Metal drops a dispatch with too many threads without a word. */
int32_t metal_check_dispatch(const mtlq_pipeline *pipeline, const mtlq_dispatch *dispatch,
                             uint32_t index)
{
    METAL_BEGIN
    id<MTLComputePipelineState> kernel =
        (__bridge id<MTLComputePipelineState>)(void *)(uintptr_t)pipeline->kernel;
    uint64_t threads = 1, groups = 1;
    for (int axis = 0; axis < 3; axis++) {
        if (dispatch->group[axis] > 1024)
            return mtlq_fail(MTLQ_E_LIMIT, "dispatch %u: %u threads along axis %d, at most 1024",
                             index, dispatch->group[axis], axis);
        threads *= dispatch->group[axis];
        groups = groups && dispatch->grid[axis];
    }
    const char *name = kernel.label ? kernel.label.UTF8String : "a kernel";
    if (!threads || threads > kernel.maxTotalThreadsPerThreadgroup)
        return mtlq_fail(MTLQ_E_LIMIT, "dispatch %u: %llu threads a group, %s takes 1 to %llu", index,
                         (unsigned long long)threads, name,
                         (unsigned long long)kernel.maxTotalThreadsPerThreadgroup);
    if (!groups && dispatch->grid_buffer == MTLQ_NO_ID)
        return mtlq_fail(MTLQ_E_ARGUMENT, "dispatch %u: %s has an empty grid", index, name);
    if (dispatch->num_bindings > ARGS_BUFFER || dispatch->args_bytes > MAX_ARGS_BYTES)
        return mtlq_fail(MTLQ_E_LIMIT,
                         "dispatch %u: %u bindings and %u argument bytes for %s, at most %u and %u",
                         index, dispatch->num_bindings, dispatch->args_bytes, name, ARGS_BUFFER,
                         MAX_ARGS_BYTES);
    return MTLQ_OK;
    METAL_END("plan_create")
}

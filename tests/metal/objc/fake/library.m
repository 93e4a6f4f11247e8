/* library.m: libraries of the test's compiler, functions, pipelines, archives (lists of names). */
#include <dlfcn.h>
#include <string.h>

#include "fake.h"

extern void fake_count(const char *name, long change);

#define MAX_KERNELS 256

@implementation MTLCompileOptions
@end

@implementation MTLFunctionConstantValues {
@public
    uint32_t values[32];
    bool isSet[32];
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index
{
    if (type != MTLDataTypeUInt || index > 31)
        fake_stop("a function constant that is no uint, or index %lu", index);
    memcpy(&values[index], value, sizeof values[index]);
    isSet[index] = true;
}
@end

@implementation FakeFunction
- (NSString *)name
{
    return [NSString stringWithUTF8String:kernel];
}
@end

@implementation FakeLibrary {
    char *source, *names; /* " a b c " */
    struct {
        char name[64];
        void *object;
    } kernels[MAX_KERNELS];
    int numKernels;
}
- (instancetype)initWithSource:(const char *)text names:(const char *)list
{
    source = strdup(text);
    size_t bytes = strlen(list) + 3;
    names = malloc(bytes);
    snprintf(names, bytes, " %s ", list);
    return self;
}
- (bool)has:(const char *)kernel
{
    char word[70];
    snprintf(word, sizeof word, " %s ", kernel);
    return strstr(names, word) != NULL;
}
- (void)want:(const char *)kernel
{
    for (int i = 0; i < numKernels; i++)
        if (!strcmp(kernels[i].name, kernel))
            return;
    if (numKernels == MAX_KERNELS)
        fake_stop("more than %d kernels", MAX_KERNELS);
    snprintf(kernels[numKernels++].name, sizeof kernels[0].name, "%s", kernel);
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error
{
    const char *kernel = name.UTF8String;
    bool fails = fake_fails();
    if (fails || ![self has:kernel]) {
        if (error)
            *error = fake_error(fails ? @"injected" : @"the library has no such function");
        return nil;
    }
    FakeFunction *function = [FakeFunction new];
    function->library = self;
    snprintf(function->kernel, sizeof function->kernel, "%s", kernel);
    memcpy(function->constants, values->values, sizeof function->constants);
    memcpy(function->isSet, values->isSet, sizeof function->isSet);
    [self want:kernel];
    return function;
}
- (void)compileWanted
{
    char list[8192] = "", answer[4096] = "";
    for (int i = 0; i < numKernels; i++)
        if (!kernels[i].object)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s ", kernels[i].name);
    if (fake_compile(source, list, answer, sizeof answer))
        fake_stop("%s", answer);
    void *object = dlopen(answer, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        fake_stop("%s", dlerror());
    for (int i = 0; i < numKernels; i++)
        if (!kernels[i].object)
            kernels[i].object = object;
}
- (void *)objectFor:(const char *)kernel
{
    for (int i = 0; i < numKernels; i++) {
        if (strcmp(kernels[i].name, kernel))
            continue;
        if (!kernels[i].object)
            [self compileWanted];
        return kernels[i].object;
    }
    return NULL;
}
- (void)dealloc
{
    free(source);
    free(names);
}
@end

/* ---- pipelines ----------------------------------------------------------------------------- */

@implementation MTLComputePipelineDescriptor
@end

@implementation FakePipeline {
@public
    NSString *label;
}
- (NSString *)label
{
    return label;
}
- (NSUInteger)maxTotalThreadsPerThreadgroup
{
    return (NSUInteger)fake_get("max_threads");
}
- (NSUInteger)staticThreadgroupMemoryLength
{
    return (NSUInteger)fake_get("group_bytes");
}
@end

@implementation MTLBinaryArchiveDescriptor
@end

@interface FakeArchive : NSObject <MTLBinaryArchive>
- (bool)has:(FakeFunction *)function;
- (bool)read:(const char *)path;
@end

@implementation FakeArchive {
    uint64_t keys[MAX_KERNELS];
    int numKeys;
}
static uint64_t key_of(const FakeFunction *function)
{
    uint64_t key = 5381;
    for (const char *c = function->kernel; *c; c++)
        key = key * 33 ^ (uint8_t)*c;
    for (int i = 0; i < 32; i++)
        key = key * 33 ^ (function->isSet[i] ? function->constants[i] + 1u : 0);
    return key;
}
- (bool)has:(FakeFunction *)function
{
    for (int i = 0; i < numKeys; i++)
        if (keys[i] == key_of(function))
            return true;
    return false;
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                            error:(NSError **)error
{
    (void)error;
    if (fake_fails() || numKeys == MAX_KERNELS)
        return NO;
    keys[numKeys++] = key_of((FakeFunction *)descriptor.computeFunction);
    fake_count("compiled", 1);
    return YES;
}
- (bool)read:(const char *)path
{
    FILE *file = fopen(path, "rb");
    char magic[8] = "";
    bool valid = file && fread(magic, 1, 8, file) == 8 && !memcmp(magic, "ARCHIVE\n", 8);
    numKeys = valid ? (int)fread(keys, sizeof keys[0], MAX_KERNELS, file) : 0;
    if (file)
        fclose(file);
    return valid;
}
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error
{
    (void)error;
    FILE *file = fake_fails() ? NULL : fopen(url.path.UTF8String, "wb");
    if (!file)
        return NO;
    fwrite("ARCHIVE\n", 1, 8, file);
    fwrite(keys, sizeof keys[0], (size_t)numKeys, file);
    return fclose(file) == 0;
}
@end

id<MTLBinaryArchive> fake_archive(MTLBinaryArchiveDescriptor *descriptor, NSError **error)
{
    (void)error;
    if (fake_fails())
        return nil;
    FakeArchive *archive = [FakeArchive new];
    if (descriptor.url && ![archive read:descriptor.url.path.UTF8String])
        return nil;
    return archive;
}

id<MTLComputePipelineState> fake_pipeline(MTLComputePipelineDescriptor *descriptor,
                                          MTLPipelineOption options, NSError **error)
{
    FakeFunction *function = (FakeFunction *)descriptor.computeFunction;
    bool found = false;
    for (NSUInteger i = 0; i < descriptor.binaryArchives.count; i++)
        found |= [(FakeArchive *)descriptor.binaryArchives[i] has:function];
    bool fails = fake_fails();
    if (fails || (!found && options & MTLPipelineOptionFailOnBinaryArchiveMiss)) {
        if (error)
            *error = fake_error(fails ? @"injected" : @"no archive has it");
        return nil;
    }
    if (!found)
        fake_count("compiled", 1);
    FakePipeline *pipeline = [FakePipeline new];
    pipeline->function = function;
    pipeline->label = descriptor.label;
    return pipeline;
}

/* Foundation.m: the classes of sdk/Foundation for tests on Linux. Manual reference counting. */
#import <Foundation/Foundation.h>

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern id class_createInstance(Class class, size_t extra_bytes);
extern void object_dispose(id object);
extern id objc_retain(id object), objc_autorelease(id object);
extern void objc_release(id object);
extern Class object_getClass(id object), class_getSuperclass(Class class);
extern BOOL class_respondsToSelector(Class class, SEL selector);
extern const char *class_getName(Class class);

/* Tests set it to let allocations of the shim's own objects and descriptors fail. */
int (*objc_allocation_fails)(const char *class_name);

@implementation NSObject
+ (instancetype)alloc
{
    const char *name = class_getName((Class)self);
    int counted = !strncmp(name, "Mtlq", 4) || !strncmp(name, "MTL", 3);
    if (counted && objc_allocation_fails && objc_allocation_fails(name))
        return nil;
    return class_createInstance((Class)self, 0);
}
+ (instancetype)new
{
    return [[self alloc] init];
}
+ (Class)class
{
    return (Class)self;
}
- (instancetype)init
{
    return self;
}
- (void)dealloc
{
    object_dispose(self);
}
- (id)copy
{
    return [(id<NSCopying>)self copyWithZone:NULL];
}
- (BOOL)isEqual:(id)object
{
    return object == self;
}
- (NSUInteger)hash
{
    return (NSUInteger)self;
}
- (Class)class
{
    return object_getClass(self);
}
- (BOOL)isKindOfClass:(Class)class
{
    for (Class c = object_getClass(self); c; c = class_getSuperclass(c))
        if (c == class)
            return YES;
    return NO;
}
- (BOOL)respondsToSelector:(SEL)selector
{
    return class_respondsToSelector(object_getClass(self), selector);
}
- (NSString *)description
{
    return [NSString stringWithUTF8String:class_getName(object_getClass(self))];
}
- (id)retain
{
    return objc_retain(self);
}
- (oneway void)release
{
    objc_release(self);
}
- (id)autorelease
{
    return objc_autorelease(self);
}
@end

/* ---- strings ------------------------------------------------------------------------------- */

@interface NSString () {
    char *text;
}
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char *)chars
{
    if (!chars)
        return nil; /* what @available is made of: see Foundation.h */
    return [[[NSString alloc] initWithBytes:chars length:strlen(chars) encoding:4] autorelease];
}
+ (instancetype)stringWithFormat:(NSString *)format, ...
{
    char chars[4096] = "";
    size_t used = 0;
    va_list arguments;
    va_start(arguments, format);
    for (const char *c = format.UTF8String; *c && used < sizeof chars - 1;) {
        if (*c != '%') {
            chars[used++] = *c++;
            continue;
        }
        char spec[16] = "";
        size_t length = strcspn(c, "@sdxu") + 1;
        memcpy(spec, c, length);
        c += length;
        char *out = chars + used;
        size_t left = sizeof chars - used;
        if (spec[length - 1] == '@')
            snprintf(out, left, "%s", [[va_arg(arguments, id) description] UTF8String]);
        else if (spec[length - 1] == 's')
            snprintf(out, left, spec, va_arg(arguments, char *));
        else if (strchr(spec, 'l'))
            snprintf(out, left, spec, va_arg(arguments, long));
        else
            snprintf(out, left, spec, va_arg(arguments, int));
        used += strlen(out);
    }
    va_end(arguments);
    chars[used] = 0;
    return [self stringWithUTF8String:chars];
}
- (instancetype)initWithBytes:(const void *)bytes
                       length:(NSUInteger)length
                     encoding:(NSUInteger)encoding
{
    (void)encoding;
    text = malloc(length + 1);
    memcpy(text, bytes, length);
    text[length] = 0;
    return self;
}
- (void)dealloc
{
    free(text);
    [super dealloc];
}
- (const char *)UTF8String
{
    return text;
}
- (NSUInteger)length
{
    return strlen([self UTF8String]);
}
- (NSString *)description
{
    return self;
}
- (id)copyWithZone:(NSZone *)zone
{
    (void)zone;
    return objc_retain(self);
}
- (BOOL)isEqual:(id)object
{
    return [object isKindOfClass:[NSString class]] &&
           !strcmp([self UTF8String], [(NSString *)object UTF8String]);
}
@end

/* The layout of @"...". */
struct constant_string {
    Class isa;
    int flags;
    const char *text;
    long length;
};
@interface ConstantString : NSString
@end
@implementation ConstantString
- (const char *)UTF8String
{
    return ((struct constant_string *)self)->text;
}
@end
__asm__(".globl __CFConstantStringClassReference\n"
        ".set __CFConstantStringClassReference, OBJC_CLASS_$_ConstantString\n");

/* ---- errors and collections ---------------------------------------------------------------- */

NSString *const NSLocalizedDescriptionKey = @"NSLocalizedDescription";

@implementation NSError {
    NSInteger number;
    NSDictionary *info;
}
+ (instancetype)errorWithDomain:(NSString *)domain code:(NSInteger)code userInfo:(NSDictionary *)userInfo
{
    (void)domain;
    NSError *error = [self new];
    error->number = code;
    error->info = objc_retain(userInfo);
    return [error autorelease];
}
- (NSInteger)code
{
    return number;
}
- (NSString *)localizedDescription
{
    return [info objectForKey:NSLocalizedDescriptionKey];
}
- (void)dealloc
{
    [info release];
    [super dealloc];
}
@end

/* Retained copies of objects. */
static id *retain_all(const id *objects, NSUInteger count)
{
    id *copies = calloc(count + 1, sizeof *copies);
    for (NSUInteger i = 0; i < count; i++)
        copies[i] = objc_retain(objects[i]);
    return copies;
}

static void release_all(id *objects, NSUInteger count)
{
    for (NSUInteger i = 0; i < count; i++)
        objc_release(objects[i]);
    free(objects);
}

@implementation NSDictionary {
    id *keys, *values;
    NSUInteger count;
}
+ (instancetype)dictionaryWithObjects:(const id *)objects forKeys:(const id *)names count:(NSUInteger)number
{
    NSDictionary *made = [self new];
    made->keys = retain_all(names, number);
    made->values = retain_all(objects, number);
    made->count = number;
    return [made autorelease];
}
- (id)objectForKey:(id)key
{
    for (NSUInteger i = 0; i < count; i++)
        if ([keys[i] isEqual:key])
            return values[i];
    return nil;
}
- (void)dealloc
{
    release_all(keys, count);
    release_all(values, count);
    [super dealloc];
}
@end

@implementation NSArray {
    id *items;
    NSUInteger number;
}
+ (instancetype)arrayWithObjects:(const id *)objects count:(NSUInteger)count
{
    NSArray *made = [self new];
    made->items = retain_all(objects, count);
    made->number = count;
    return [made autorelease];
}
- (NSUInteger)count
{
    return number;
}
- (id)objectAtIndexedSubscript:(NSUInteger)index
{
    if (index >= number)
        abort();
    return items[index];
}
- (id)copyWithZone:(NSZone *)zone
{
    (void)zone;
    return objc_retain(self);
}
- (void)dealloc
{
    release_all(items, number);
    [super dealloc];
}
@end

/* ---- files and the system ------------------------------------------------------------------ */

@implementation NSURL {
    NSString *location;
}
+ (NSURL *)fileURLWithPath:(NSString *)path
{
    NSURL *url = [self new];
    url->location = [path copy];
    return [url autorelease];
}
- (NSURL *)URLByAppendingPathComponent:(NSString *)component
{
    NSString *path = [NSString stringWithFormat:@"%@/%@", location, component];
    return [NSURL fileURLWithPath:path];
}
- (NSString *)path
{
    return location;
}
- (id)copyWithZone:(NSZone *)zone
{
    (void)zone;
    return objc_retain(self);
}
- (void)dealloc
{
    [location release];
    [super dealloc];
}
@end

@implementation NSFileManager
+ (NSFileManager *)defaultManager
{
    return [[self new] autorelease];
}
- (BOOL)createDirectoryAtURL:(NSURL *)url
    withIntermediateDirectories:(BOOL)intermediates
                     attributes:(NSDictionary *)attributes
                          error:(NSError **)error
{
    (void)intermediates, (void)attributes, (void)error;
    char path[1024];
    snprintf(path, sizeof path, "%s", url.path.UTF8String);
    for (char *c = path + 1; *c; c++)
        if (*c == '/') {
            *c = 0;
            mkdir(path, 0755);
            *c = '/';
        }
    return mkdir(path, 0755) == 0 || access(path, W_OK) == 0;
}
- (BOOL)fileExistsAtPath:(NSString *)path
{
    return access(path.UTF8String, F_OK) == 0;
}
@end

@implementation NSProcessInfo
+ (NSProcessInfo *)processInfo
{
    return [[self new] autorelease];
}
- (NSString *)operatingSystemVersionString
{
    extern long fake_get(const char *name);
    return [NSString stringWithFormat:@"Version %d", (int)fake_get("version")];
}
@end

/* Foundation.h: the part of Foundation's interface that shim/metal and the fake use, in our own text.
 * Names, types and values are facts of the API; test_api.py compares them with Apple's metadata. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__aarch64__)
typedef bool BOOL;
#else
typedef signed char BOOL;
#endif
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#ifndef nil
#define nil ((id)0)
#endif

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;
typedef struct _NSZone NSZone;
typedef struct _NSRange {
    NSUInteger location, length;
} NSRange;

static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length)
{
    return (NSRange){location, length};
}

#define NS_ENUM(type, name)                                                                        \
    enum name : type name;                                                                         \
    enum name : type
#define NS_OPTIONS(type, name) NS_ENUM(type, name)
#define API_AVAILABLE(platform) __attribute__((availability(SDK_##platform)))
#define SDK_macos(version) macos, introduced = version

#if !defined(__APPLE__)
/* The fake has a version of the system that tests choose. `@available(macOS 26.0, *)` becomes
 * @("26.0") on such a system or a later one, else @(NULL): a boxed string, which is nil then. */
const char *_Nullable fake_available(const char *_Nonnull version);
#define available(version, ...) (fake_available(#version))
#endif

#pragma clang assume_nonnull begin

@class NSString, NSError, NSDictionary, NSArray, NSURL;

@protocol NSObject
- (BOOL)isEqual:(nullable id)object;
- (NSUInteger)hash;
- (Class)class;
- (BOOL)isKindOfClass:(Class)class;
- (BOOL)respondsToSelector:(SEL)selector;
- (NSString *)description;
@end

@protocol NSCopying
- (id)copyWithZone:(nullable NSZone *)zone;
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject> {
    Class isa;
}
+ (instancetype)alloc __attribute__((ns_returns_retained));
+ (instancetype)new;
+ (Class)class;
- (instancetype)init;
- (void)dealloc;
- (id)copy;
@end

enum { NSUTF8StringEncoding = 4 };

@interface NSString : NSObject <NSCopying>
+ (nullable instancetype)stringWithUTF8String:(const char *)text;
+ (instancetype)stringWithFormat:(NSString *)format, ... __attribute__((format(__NSString__, 1, 2)));
- (nullable instancetype)initWithBytes:(const void *)bytes
                                length:(NSUInteger)length
                              encoding:(NSUInteger)encoding;
@property(readonly) const char *UTF8String;
@property(readonly) NSUInteger length;
@end

@interface NSError : NSObject
+ (instancetype)errorWithDomain:(NSString *)domain
                           code:(NSInteger)code
                       userInfo:(nullable NSDictionary *)userInfo;
@property(readonly) NSInteger code;
@property(readonly, copy) NSString *localizedDescription;
@end
extern NSString *const NSLocalizedDescriptionKey;

@interface NSDictionary<Key, Value> : NSObject
+ (instancetype)dictionaryWithObjects:(const id _Nonnull *_Nonnull)objects
                              forKeys:(const id _Nonnull *_Nonnull)keys
                                count:(NSUInteger)count;
- (nullable Value)objectForKey:(Key)key;
@end

@interface NSArray<Item> : NSObject
+ (instancetype)arrayWithObjects:(const id _Nonnull *_Nonnull)objects count:(NSUInteger)count;
@property(readonly) NSUInteger count;
- (Item)objectAtIndexedSubscript:(NSUInteger)index;
@end

@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
- (nullable NSURL *)URLByAppendingPathComponent:(NSString *)component;
@property(nullable, readonly, copy) NSString *path;
@end

@interface NSFileManager : NSObject
@property(class, readonly, strong) NSFileManager *defaultManager;
- (BOOL)createDirectoryAtURL:(NSURL *)url
    withIntermediateDirectories:(BOOL)intermediates
                     attributes:(nullable NSDictionary *)attributes
                          error:(NSError *_Nullable *_Nullable)error;
- (BOOL)fileExistsAtPath:(NSString *)path;
@end

@interface NSProcessInfo : NSObject
@property(class, readonly, strong) NSProcessInfo *processInfo;
@property(readonly, copy) NSString *operatingSystemVersionString;
@end

#pragma clang assume_nonnull end

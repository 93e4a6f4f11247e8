/* objc.h: a small Objective-C runtime for tests on Linux.
 *
 * clang -fobjc-runtime=macosx emits Apple's modern ABI into ELF sections (objc_classlist, ...). This
 * runtime loads them: message send, classes, categories, protocols, ARC entry points, blocks,
 * autorelease pools, exceptions. It counts live objects and stops at the use of a dead one. */
#ifndef OBJC_RUNTIME_H
#define OBJC_RUNTIME_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef struct objc_class *Class;
typedef struct objc_object {
    Class isa;
} *id;
typedef const char *SEL; /* unique address per name */
typedef void (*IMP)(void);

struct method {
    SEL name;
    const char *types;
    IMP imp;
};
struct method_list {
    uint32_t entry_bytes, count;
    struct method methods[];
};
struct class_data {
    uint32_t flags, instance_start, instance_bytes, reserved;
    const void *ivar_layout;
    const char *name;
    struct method_list *methods;
    void *protocols, *ivars;
    const void *weak_layout;
    void *properties;
};
struct objc_class {
    Class isa, super;
    void *cache, *vtable;
    struct class_data *data;
};
struct category {
    const char *name;
    Class class;
    struct method_list *instance_methods, *class_methods;
    void *protocols, *properties;
};
struct protocol {
    Class isa;
    const char *name;
    void *protocols;
    struct method_list *required, *required_class, *optional, *optional_class;
};

#define CLASS_IS_META 1u

extern pthread_mutex_t objc_mutex; /* recursive */

_Noreturn void objc_stop(const char *format, ...);
SEL sel_registerName(const char *name);
IMP objc_find_method(Class class, SEL selector); /* NULL if the class has none */
id objc_retain(id object);
void objc_release(id object);
id objc_autorelease(id object);
void *_Block_copy(const void *block);
void _Block_release(const void *block);

#endif

/* classes.c: selectors, classes and message sends. */
#include "objc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLASSES 512
#define MAX_CATEGORIES 64
#define MAX_PROTOCOLS 512
#define MAX_SELECTORS 8192 /* a power of two */
#define CACHE_SLOTS 4096   /* a power of two */

pthread_mutex_t objc_mutex;
void *_objc_empty_cache, *_objc_empty_vtable;

static SEL selectors[MAX_SELECTORS];
static Class classes[MAX_CLASSES];
static struct category *categories[MAX_CATEGORIES];
static struct protocol *protocols[MAX_PROTOCOLS];
static int num_selectors, num_classes, num_categories, num_protocols;
static struct {
    Class class;
    SEL selector;
    IMP imp;
} cache[CACHE_SLOTS];

void objc_stop(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("objc: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

/* ---- selectors ----------------------------------------------------------------------------- */

static SEL intern(const char *name)
{
    uint64_t hash = 14695981039346656037u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    size_t slot = hash & (MAX_SELECTORS - 1);
    while (selectors[slot]) {
        if (!strcmp(selectors[slot], name))
            return selectors[slot];
        slot = (slot + 1) & (MAX_SELECTORS - 1);
    }
    if (++num_selectors > MAX_SELECTORS / 2)
        objc_stop("too many selectors");
    return selectors[slot] = strdup(name);
}

SEL sel_registerName(const char *name)
{
    pthread_mutex_lock(&objc_mutex);
    SEL selector = intern(name);
    pthread_mutex_unlock(&objc_mutex);
    return selector;
}

/* ---- images -------------------------------------------------------------------------------- */

static void intern_methods(struct method_list *list)
{
    for (uint32_t i = 0; list && i < list->count; i++)
        list->methods[i].name = intern(list->methods[i].name);
}

struct image {
    SEL *first_selector, *end_selector;
    Class *first_class, *end_class;
    struct category **first_category, **end_category;
    struct protocol **first_protocol, **end_protocol;
};

__attribute__((constructor(101))) static void make_mutex(void)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&objc_mutex, &recursive);
}

/* Takes in the metadata of a shared object; image.c calls it from each. */
void objc_load_image(const struct image *image)
{
    pthread_mutex_lock(&objc_mutex);
    for (SEL *s = image->first_selector; s < image->end_selector; s++)
        *s = intern(*s);
    for (Class *c = image->first_class; c < image->end_class; c++) {
        intern_methods((*c)->data->methods);
        intern_methods((*c)->isa->data->methods);
        classes[num_classes++] = *c;
    }
    for (struct category **c = image->first_category; c < image->end_category; c++) {
        intern_methods((*c)->instance_methods);
        intern_methods((*c)->class_methods);
        categories[num_categories++] = *c;
    }
    for (struct protocol **p = image->first_protocol; p < image->end_protocol; p++) {
        intern_methods((*p)->required);
        protocols[num_protocols++] = *p;
    }
    if (num_classes > MAX_CLASSES || num_categories > MAX_CATEGORIES ||
        num_protocols > MAX_PROTOCOLS)
        objc_stop("too many classes, categories or protocols");
    pthread_mutex_unlock(&objc_mutex);
}

/* ---- methods ------------------------------------------------------------------------------- */

static IMP find_in(const struct method_list *list, SEL selector)
{
    for (uint32_t i = 0; list && i < list->count; i++)
        if (list->methods[i].name == selector)
            return list->methods[i].imp;
    return NULL;
}

static IMP find_in_class(Class class, SEL selector)
{
    int is_meta = class->data->flags & CLASS_IS_META;
    for (int i = 0; i < num_categories; i++) {
        const struct category *category = categories[i];
        Class extended = is_meta ? category->class->isa : category->class;
        IMP imp = extended == class
                      ? find_in(is_meta ? category->class_methods : category->instance_methods, selector)
                      : NULL;
        if (imp)
            return imp;
    }
    return find_in(class->data->methods, selector);
}

IMP objc_find_method(Class class, SEL selector)
{
    size_t slot = ((uintptr_t)class >> 4 ^ (uintptr_t)selector >> 2) & (CACHE_SLOTS - 1);
    pthread_mutex_lock(&objc_mutex);
    IMP imp = NULL;
    if (cache[slot].class == class && cache[slot].selector == selector)
        imp = cache[slot].imp;
    for (Class c = class; c && !imp; c = c->super)
        imp = find_in_class(c, selector);
    if (imp) {
        cache[slot].class = class;
        cache[slot].selector = selector;
        cache[slot].imp = imp;
    }
    pthread_mutex_unlock(&objc_mutex);
    return imp;
}

IMP objc_lookup(id object, SEL selector)
{
    IMP imp = objc_find_method(object->isa, selector);
    if (!imp)
        objc_stop("%c[%s %s] does not exist", object->isa->data->flags & CLASS_IS_META ? '+' : '-',
                  object->isa->data->name, selector);
    return imp;
}

struct super_call {
    id receiver;
    Class class;
};

IMP objc_lookup_super(const struct super_call *call, SEL selector)
{
    IMP imp = objc_find_method(call->class->super, selector);
    if (!imp)
        objc_stop("[super %s] does not exist in %s", selector, call->class->data->name);
    return imp;
}

/* Looks the method up with all argument registers (System V AMD64) kept, then jumps to it.
 * nil gives zeros. The stack is aligned: a call comes with 8 bytes of return address. */
#define SAVE_ARGUMENTS                                                                             \
    "pushq %rbp\nmovq %rsp,%rbp\nsubq $192,%rsp\n"                                                 \
    "movq %rdi,(%rsp)\nmovq %rsi,8(%rsp)\nmovq %rdx,16(%rsp)\nmovq %rcx,24(%rsp)\n"                \
    "movq %r8,32(%rsp)\nmovq %r9,40(%rsp)\nmovq %rax,48(%rsp)\n"                                   \
    "movaps %xmm0,64(%rsp)\nmovaps %xmm1,80(%rsp)\nmovaps %xmm2,96(%rsp)\nmovaps %xmm3,112(%rsp)\n" \
    "movaps %xmm4,128(%rsp)\nmovaps %xmm5,144(%rsp)\nmovaps %xmm6,160(%rsp)\nmovaps %xmm7,176(%rsp)\n"
#define RESTORE_ARGUMENTS                                                                          \
    "movq %rax,%r11\n"                                                                             \
    "movq (%rsp),%rdi\nmovq 8(%rsp),%rsi\nmovq 16(%rsp),%rdx\nmovq 24(%rsp),%rcx\n"                \
    "movq 32(%rsp),%r8\nmovq 40(%rsp),%r9\nmovq 48(%rsp),%rax\n"                                   \
    "movaps 64(%rsp),%xmm0\nmovaps 80(%rsp),%xmm1\nmovaps 96(%rsp),%xmm2\nmovaps 112(%rsp),%xmm3\n" \
    "movaps 128(%rsp),%xmm4\nmovaps 144(%rsp),%xmm5\nmovaps 160(%rsp),%xmm6\nmovaps 176(%rsp),%xmm7\n" \
    "leave\n"
#define FUNCTION(name) ".text\n.globl " name "\n.type " name ",@function\n" name ":\n"

asm(FUNCTION("objc_msgSend") "testq %rdi,%rdi\nje 1f\n" SAVE_ARGUMENTS
    "call objc_lookup@PLT\n" RESTORE_ARGUMENTS "jmp *%r11\n"
    "1: xorl %eax,%eax\nxorl %edx,%edx\nxorps %xmm0,%xmm0\nxorps %xmm1,%xmm1\nret\n"
    FUNCTION("objc_msgSendSuper2") SAVE_ARGUMENTS
    "call objc_lookup_super@PLT\n" RESTORE_ARGUMENTS "movq (%rdi),%rdi\njmp *%r11\n");

/* ---- questions ----------------------------------------------------------------------------- */

Class object_getClass(id object)
{
    return object ? object->isa : NULL;
}

Class class_getSuperclass(Class class)
{
    return class ? class->super : NULL;
}

const char *class_getName(Class class)
{
    return class ? class->data->name : "nil";
}

Class objc_getClass(const char *name)
{
    for (int i = 0; i < num_classes; i++)
        if (!strcmp(classes[i]->data->name, name))
            return classes[i];
    return NULL;
}

signed char class_respondsToSelector(Class class, SEL selector)
{
    return objc_find_method(class, selector) != NULL;
}

/* The first required method of a protocol that a class lacks; "" if none, NULL if either is unknown. */
__attribute__((visibility("default"))) const char *objc_missing_method(const char *class_name,
                                                                       const char *protocol_name)
{
    Class class = objc_getClass(class_name);
    for (int i = 0; class && i < num_protocols; i++) {
        if (strcmp(protocols[i]->name, protocol_name))
            continue;
        const struct method_list *required = protocols[i]->required;
        for (uint32_t j = 0; required && j < required->count; j++)
            if (!objc_find_method(class, required->methods[j].name))
                return required->methods[j].name;
        return "";
    }
    return NULL;
}

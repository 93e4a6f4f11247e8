/* objects.c: allocation, reference counts, autorelease pools, properties, live-object counts. */
#include "objc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct header {
    long references;
    uint64_t magic;
};
#define ALIVE 0x6f626a6563746976u
#define DEAD 0xdeadu

extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];
extern struct objc_class constant_string asm("OBJC_CLASS_$_ConstantString");

/* ---- live objects -------------------------------------------------------------------------- */

#define MAX_COUNTED 128
static struct {
    Class class;
    long live;
} counts[MAX_COUNTED];

static void count_object(Class class, long change)
{
    pthread_mutex_lock(&objc_mutex);
    int i = 0;
    while (counts[i].class && counts[i].class != class)
        if (++i == MAX_COUNTED)
            objc_stop("too many classes to count");
    counts[i].class = class;
    counts[i].live += change;
    pthread_mutex_unlock(&objc_mutex);
}

/* How many objects live; text (if given) receives "Class count" pairs. */
__attribute__((visibility("default"))) long objc_live_objects(char *text, size_t num_bytes)
{
    long total = 0;
    size_t used = 0;
    pthread_mutex_lock(&objc_mutex);
    for (int i = 0; i < MAX_COUNTED && counts[i].class; i++) {
        total += counts[i].live;
        if (text && counts[i].live && used < num_bytes)
            used += (size_t)snprintf(text + used, num_bytes - used, "%s %ld ",
                                     counts[i].class->data->name, counts[i].live);
    }
    pthread_mutex_unlock(&objc_mutex);
    return total;
}

/* ---- reference counts ---------------------------------------------------------------------- */

static struct header *header_of(id object)
{
    struct header *header = (struct header *)object - 1;
    if (header->magic != ALIVE)
        objc_stop("use of %s object %p", header->magic == DEAD ? "a dead" : "no", (void *)object);
    return header;
}

static int is_block(id object)
{
    void *isa = object->isa;
    return isa == _NSConcreteGlobalBlock || isa == _NSConcreteStackBlock ||
           isa == _NSConcreteMallocBlock;
}

static int is_immortal(id object)
{
    return object->isa == &constant_string || object->isa->data->flags & CLASS_IS_META;
}

id class_createInstance(Class class, size_t extra_bytes)
{
    struct header *header = calloc(1, sizeof *header + class->data->instance_bytes + extra_bytes);
    *header = (struct header){1, ALIVE};
    id object = (id)(header + 1);
    object->isa = class;
    count_object(class, 1);
    return object;
}

/* Dead objects keep their memory, so that their use is noticed. */
void object_dispose(id object)
{
    SEL destruct = sel_registerName(".cxx_destruct");
    for (Class c = object->isa; c; c = c->super) {
        struct method_list *list = c->data->methods;
        for (uint32_t i = 0; list && i < list->count; i++)
            if (list->methods[i].name == destruct)
                ((void (*)(id, SEL))list->methods[i].imp)(object, destruct);
    }
    count_object(object->isa, -1);
    header_of(object)->magic = DEAD;
}

id objc_retain(id object)
{
    if (!object)
        return NULL;
    if (is_block(object)) /* one on the stack is only copied by objc_retainBlock */
        return (void *)object->isa == _NSConcreteMallocBlock ? (id)_Block_copy(object) : object;
    if (!is_immortal(object))
        __atomic_add_fetch(&header_of(object)->references, 1, __ATOMIC_RELAXED);
    return object;
}

void objc_release(id object)
{
    if (!object || (!is_block(object) && is_immortal(object)))
        return;
    if (is_block(object)) {
        _Block_release(object);
        return;
    }
    if (__atomic_sub_fetch(&header_of(object)->references, 1, __ATOMIC_ACQ_REL))
        return;
    SEL dealloc = sel_registerName("dealloc");
    ((void (*)(id, SEL))objc_find_method(object->isa, dealloc))(object, dealloc);
}

/* ---- autorelease pools --------------------------------------------------------------------- */

static __thread id *pool;
static __thread size_t pool_count, pool_capacity;

void *objc_autoreleasePoolPush(void)
{
    return (void *)(pool_count + 1);
}

void objc_autoreleasePoolPop(void *token)
{
    while (pool_count > (size_t)token - 1)
        objc_release(pool[--pool_count]);
}

id objc_autorelease(id object)
{
    if (!object)
        return NULL;
    if (pool_count == pool_capacity)
        pool = realloc(pool, (pool_capacity = pool_capacity ? 2 * pool_capacity : 256) * sizeof *pool);
    return pool[pool_count++] = object;
}

/* ---- what the compiler calls --------------------------------------------------------------- */

id objc_retainAutorelease(id object) { return objc_autorelease(objc_retain(object)); }
id objc_autoreleaseReturnValue(id object) { return objc_autorelease(object); }
id objc_retainAutoreleaseReturnValue(id object) { return objc_retainAutorelease(object); }
id objc_retainAutoreleasedReturnValue(id object) { return objc_retain(object); }
id objc_claimAutoreleasedReturnValue(id object) { return objc_retain(object); }
id objc_unsafeClaimAutoreleasedReturnValue(id object) { return object; }
id objc_retainBlock(id block) { return block ? (id)_Block_copy(block) : NULL; }

void objc_storeStrong(id *place, id object)
{
    id old = *place;
    *place = objc_retain(object);
    objc_release(old);
}

static id send(id object, const char *name)
{
    SEL selector = sel_registerName(name);
    IMP imp = objc_find_method(object->isa, selector);
    if (!imp)
        objc_stop("%s has no %s", object->isa->data->name, name);
    return ((id (*)(id, SEL))imp)(object, selector);
}

id objc_alloc(Class class) { return send((id)class, "alloc"); }

id objc_alloc_init(Class class)
{
    id object = objc_alloc(class);
    return object ? send(object, "init") : NULL;
}

id objc_opt_new(Class class) { return send((id)class, "new"); }
id objc_opt_self(id object) { return object; }

id objc_getProperty(id self, SEL selector, ptrdiff_t offset, signed char atomic)
{
    (void)selector, (void)atomic;
    pthread_mutex_lock(&objc_mutex);
    id object = objc_retain(*(id *)((char *)self + offset));
    pthread_mutex_unlock(&objc_mutex);
    return objc_autorelease(object);
}

static void set_property(id self, ptrdiff_t offset, id object)
{
    id *place = (id *)((char *)self + offset);
    pthread_mutex_lock(&objc_mutex);
    id old = *place;
    *place = object;
    pthread_mutex_unlock(&objc_mutex);
    objc_release(old);
}

void objc_setProperty_nonatomic(id self, SEL selector, id object, ptrdiff_t offset)
{
    (void)selector;
    set_property(self, offset, objc_retain(object));
}

void objc_setProperty_nonatomic_copy(id self, SEL selector, id object, ptrdiff_t offset)
{
    (void)selector;
    set_property(self, offset, object ? send(object, "copy") : NULL);
}

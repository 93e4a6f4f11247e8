/* blocks.c: blocks (copied to the heap, counted) and exceptions. */
#include "objc.h"

#include <stdlib.h>
#include <string.h>
#include <unwind.h>

void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];

struct descriptor {
    unsigned long reserved, num_bytes;
    void (*copy)(void *target, const void *source);
    void (*dispose)(const void *block);
};
struct block {
    void *isa;
    int flags, reserved;
    void *invoke;
    struct descriptor *descriptor;
};
/* Bits of the public block ABI. */
#define NEEDS_FREE (1 << 24)
#define HAS_HELPERS (1 << 25)
#define IS_GLOBAL (1 << 28)
#define COUNT_MASK 0xfffe
#define FIELD_IS_OBJECT 3
#define FIELD_IS_BLOCK 7

void *_Block_copy(const void *source)
{
    struct block *block = (struct block *)source;
    if (!block || block->flags & IS_GLOBAL)
        return block;
    if (block->flags & NEEDS_FREE) {
        __atomic_add_fetch(&block->flags, 2, __ATOMIC_RELAXED);
        return block;
    }
    struct block *copy = malloc(block->descriptor->num_bytes);
    memcpy(copy, block, block->descriptor->num_bytes);
    copy->isa = _NSConcreteMallocBlock;
    copy->flags = (block->flags & ~0xffff) | NEEDS_FREE | 2;
    if (block->flags & HAS_HELPERS)
        block->descriptor->copy(copy, block);
    return copy;
}

void _Block_release(const void *source)
{
    struct block *block = (struct block *)source;
    if (!block || !(block->flags & NEEDS_FREE))
        return;
    if (__atomic_sub_fetch(&block->flags, 2, __ATOMIC_ACQ_REL) & COUNT_MASK)
        return;
    if (block->flags & HAS_HELPERS)
        block->descriptor->dispose(block);
    free(block);
}

void _Block_object_assign(void *target, const void *object, int flags)
{
    if (flags == FIELD_IS_OBJECT)
        *(id *)target = objc_retain((id)object);
    else if (flags == FIELD_IS_BLOCK)
        *(void **)target = _Block_copy(object);
    else
        objc_stop("a block captures a __block variable");
}

void _Block_object_dispose(const void *object, int flags)
{
    if (flags == FIELD_IS_OBJECT)
        objc_release((id)object);
    else
        _Block_release(object);
}

/* ---- exceptions: @catch (...) alone, which C++'s personality takes for catch (...) ------------- */

extern _Unwind_Reason_Code __gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class,
                                                struct _Unwind_Exception *, struct _Unwind_Context *);

_Unwind_Reason_Code __objc_personality_v0(int version, _Unwind_Action actions,
                                          _Unwind_Exception_Class class,
                                          struct _Unwind_Exception *exception,
                                          struct _Unwind_Context *context)
{
    return __gxx_personality_v0(version, actions, class, exception, context);
}

static __thread struct _Unwind_Exception *caught;

static void free_exception(_Unwind_Reason_Code reason, struct _Unwind_Exception *exception)
{
    (void)reason;
    free(exception);
}

_Noreturn void objc_exception_throw(id object)
{
    (void)object;
    struct _Unwind_Exception *exception = aligned_alloc(16, sizeof *exception);
    memset(exception, 0, sizeof *exception);
    memcpy(&exception->exception_class, "TESTOBJC", 8);
    exception->exception_cleanup = free_exception;
    _Unwind_RaiseException(exception);
    objc_stop("an exception that nobody catches");
}

id objc_begin_catch(void *exception)
{
    caught = exception;
    return NULL;
}

void objc_end_catch(void)
{
    if (caught)
        _Unwind_DeleteException(caught);
    caught = NULL;
}

_Noreturn void objc_exception_rethrow(void)
{
    objc_stop("an exception that is thrown again");
}

_Noreturn void objc_terminate(void)
{
    objc_stop("terminated by an exception");
}

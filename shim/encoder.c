/* encoder.c: a plan built one dispatch at a time and submitted once. */
#include <stdlib.h>
#include <string.h>

#include "device.h"

typedef struct array {
    void *items;
    uint32_t count;
    uint32_t capacity;
} array;

struct mtlq_encoder {
    mtlq_object object;
    array dispatches; /* mtlq_dispatch */
    array bindings;   /* mtlq_binding */
    array args;       /* bytes */
};

static void destroy_encoder(mtlq_object *object)
{
    mtlq_encoder *encoder = (mtlq_encoder *)object;
    free(encoder->dispatches.items);
    free(encoder->bindings.items);
    free(encoder->args.items);
}

/* Makes room for count more items. */
static bool reserve(array *array, uint32_t count, size_t item_bytes)
{
    if (count > (UINT32_MAX >> 1) - array->count)
        return false;
    uint32_t wanted = array->count + count;
    if (wanted <= array->capacity)
        return true;
    uint32_t capacity = wanted < 32 ? 64 : 2 * wanted;
    void *items = realloc(array->items, capacity * item_bytes);
    if (!items)
        return false;
    array->items = items;
    array->capacity = capacity;
    return true;
}

static void append(array *array, const void *items, uint32_t count, size_t item_bytes)
{
    if (count)
        memcpy((char *)array->items + array->count * item_bytes, items, count * item_bytes);
    array->count += count;
}

int32_t mtlq_encoder_create(mtlq_device *device, mtlq_encoder **out)
{
    if (out)
        *out = NULL;
    if (!device || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "encoder_create: NULL argument");
    mtlq_lock(device);
    mtlq_object *object;
    int32_t status = mtlq_object_create(device, MTLQ_KIND_ENCODER, sizeof(mtlq_encoder),
                                        destroy_encoder, &object);
    if (!status)
        *out = (mtlq_encoder *)object;
    mtlq_unlock(device);
    return status;
}

int32_t mtlq_encoder_dispatch(mtlq_encoder *encoder, const mtlq_dispatch *dispatch,
                              const mtlq_binding *bindings, const void *args)
{
    static const char zeros[16];
    if (!encoder || !dispatch || (dispatch->num_bindings && !bindings) ||
        (dispatch->args_bytes && !args))
        return mtlq_fail(MTLQ_E_ARGUMENT, "encoder_dispatch: NULL argument");
    if (dispatch->args_bytes > 1u << 20)
        return mtlq_fail(MTLQ_E_ARGUMENT, "encoder_dispatch: %u argument bytes",
                         dispatch->args_bytes);
    uint32_t padding = -dispatch->args_bytes % 16;
    if (!reserve(&encoder->dispatches, 1, sizeof *dispatch) ||
        !reserve(&encoder->bindings, dispatch->num_bindings, sizeof *bindings) ||
        !reserve(&encoder->args, dispatch->args_bytes + padding, 1))
        return mtlq_fail(MTLQ_E_NOMEM, "encoder_dispatch: no memory after %u dispatches",
                         encoder->dispatches.count);
    mtlq_dispatch record = *dispatch;
    record.first_binding = encoder->bindings.count;
    record.args_offset = encoder->args.count;
    record.grid_buffer = MTLQ_NO_ID;
    record.grid_offset_bytes = 0;
    append(&encoder->dispatches, &record, 1, sizeof record);
    append(&encoder->bindings, bindings, dispatch->num_bindings, sizeof *bindings);
    append(&encoder->args, args, dispatch->args_bytes, 1);
    append(&encoder->args, zeros, padding, 1);
    return MTLQ_OK;
}

int32_t mtlq_encoder_commit(mtlq_encoder *encoder, uint64_t *ticket)
{
    if (ticket)
        *ticket = 0;
    if (!encoder || !ticket)
        return mtlq_fail(MTLQ_E_ARGUMENT, "encoder_commit: NULL argument");
    mtlq_device *device = encoder->object.device;
    mtlq_plan *plan = NULL;
    if (encoder->dispatches.count) {
        mtlq_plan_desc desc = {
            .struct_size = sizeof desc,
            .num_dispatches = encoder->dispatches.count,
            .num_bindings = encoder->bindings.count,
            .num_args_bytes = encoder->args.count,
            .dispatches = encoder->dispatches.items,
            .bindings = encoder->bindings.items,
            .args = encoder->args.items,
        };
        int32_t status = mtlq_plan_create(device, &desc, &plan);
        if (status)
            return status;
    }
    int32_t status = mtlq_submit(device, &plan, plan ? 1 : 0, NULL, 0, ticket);
    mtlq_plan_free(plan);
    if (status)
        return status;
    encoder->dispatches.count = encoder->bindings.count = encoder->args.count = 0;
    return MTLQ_OK;
}

void mtlq_encoder_free(mtlq_encoder *encoder)
{
    mtlq_object_free((mtlq_object *)encoder);
}

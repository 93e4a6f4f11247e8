/* plan.c: libraries, pipelines, plans, and their submission. */
#include <stdlib.h>
#include <string.h>

#include "device.h"

/* ---- kernels ------------------------------------------------------------------------------- */

static void destroy_library(mtlq_object *object)
{
    mtlq_library *library = (mtlq_library *)object;
    if (library->handle)
        object->device->backend->library_free(library);
}

int32_t mtlq_library_create(mtlq_device *device, const char *source, uint64_t num_bytes,
                            mtlq_library **out)
{
    if (out)
        *out = NULL;
    if (!device || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "library_create: NULL argument");
    mtlq_lock(device);
    mtlq_object *object;
    int32_t status = mtlq_object_create(device, MTLQ_KIND_LIBRARY, sizeof(mtlq_library),
                                        destroy_library, &object);
    if (!status) {
        status = device->backend->library_create((mtlq_library *)object, source, num_bytes);
        if (status)
            mtlq_object_release(object);
        else
            *out = (mtlq_library *)object;
    }
    mtlq_unlock(device);
    return status;
}

void mtlq_library_free(mtlq_library *library)
{
    mtlq_object_free((mtlq_object *)library);
}

static void destroy_pipeline(mtlq_object *object)
{
    mtlq_pipeline *pipeline = (mtlq_pipeline *)object;
    if (pipeline->kernel)
        object->device->backend->pipeline_free(pipeline);
    mtlq_object_release(&pipeline->library->object);
}

int32_t mtlq_pipeline_create(mtlq_library *library, const char *name, const mtlq_constant *constants,
                             uint32_t num_constants, mtlq_pipeline **out)
{
    if (out)
        *out = NULL;
    if (!library || !name || !out || (num_constants && !constants))
        return mtlq_fail(MTLQ_E_ARGUMENT, "pipeline_create: NULL argument");
    mtlq_device *device = library->object.device;
    mtlq_lock(device);
    mtlq_object *object;
    int32_t status = mtlq_object_create(device, MTLQ_KIND_PIPELINE, sizeof(mtlq_pipeline),
                                        destroy_pipeline, &object);
    if (!status) {
        mtlq_pipeline *pipeline = (mtlq_pipeline *)object;
        pipeline->library = library;
        library->object.num_refs++;
        status = device->backend->pipeline_create(pipeline, name, constants, num_constants);
        if (status)
            mtlq_object_release(object);
        else
            *out = pipeline;
    }
    mtlq_unlock(device);
    return status;
}

uint32_t mtlq_pipeline_id(const mtlq_pipeline *pipeline)
{
    return pipeline ? pipeline->object.id : MTLQ_NO_ID;
}

void mtlq_pipeline_free(mtlq_pipeline *pipeline)
{
    mtlq_object_free((mtlq_object *)pipeline);
}

/* ---- plans --------------------------------------------------------------------------------- */

static void destroy_plan(mtlq_object *object)
{
    mtlq_plan *plan = (mtlq_plan *)object;
    for (uint32_t i = 0; plan->pipelines && i < plan->num_dispatches; i++)
        if (plan->pipelines[i])
            mtlq_object_release(&plan->pipelines[i]->object);
    for (uint32_t i = 0; plan->grid_buffers && i < plan->num_dispatches; i++)
        if (plan->grid_buffers[i])
            mtlq_object_release(&plan->grid_buffers[i]->object);
    for (uint32_t i = 0; plan->buffers && i < plan->num_bindings; i++)
        if (plan->buffers[i])
            mtlq_object_release(&plan->buffers[i]->object);
    free(plan->dispatches);
    free(plan->pipelines);
    free(plan->grid_buffers);
    free(plan->bindings);
    free(plan->buffers);
    free(plan->addresses);
    free(plan->args);
    free(plan->nanoseconds);
}

static int32_t check_plan_desc(const mtlq_plan_desc *desc)
{
    if (desc->struct_size < sizeof *desc)
        return mtlq_fail(MTLQ_E_ARGUMENT, "plan_create: struct_size is %u, at least %zu expected",
                         desc->struct_size, sizeof *desc);
    if (!desc->num_dispatches)
        return mtlq_fail(MTLQ_E_ARGUMENT, "plan_create: no dispatches");
    if (!desc->dispatches || (desc->num_bindings && !desc->bindings) ||
        (desc->num_args_bytes && !desc->args))
        return mtlq_fail(MTLQ_E_ARGUMENT, "plan_create: NULL array");
    return MTLQ_OK;
}

static int32_t allocate_plan(mtlq_plan *plan, const mtlq_plan_desc *desc)
{
    size_t num_dispatches = desc->num_dispatches;
    size_t num_bindings = (size_t)desc->num_bindings + 1;
    plan->num_dispatches = desc->num_dispatches;
    plan->num_bindings = desc->num_bindings;
    plan->dispatches = calloc(num_dispatches, sizeof *plan->dispatches);
    plan->pipelines = calloc(num_dispatches, sizeof *plan->pipelines);
    plan->grid_buffers = calloc(num_dispatches, sizeof *plan->grid_buffers);
    plan->bindings = calloc(num_bindings, sizeof *plan->bindings);
    plan->buffers = calloc(num_bindings, sizeof *plan->buffers);
    plan->addresses = calloc(num_bindings, sizeof *plan->addresses);
    plan->args = aligned_alloc(64, ((size_t)desc->num_args_bytes / 64 + 1) * 64);
    bool profile = plan->object.device->flags & MTLQ_DEVICE_PROFILE;
    if (profile)
        plan->nanoseconds = calloc(num_dispatches, sizeof *plan->nanoseconds);
    if (!plan->dispatches || !plan->pipelines || !plan->grid_buffers || !plan->bindings ||
        !plan->buffers || !plan->addresses || !plan->args || (profile && !plan->nanoseconds))
        return mtlq_fail(MTLQ_E_NOMEM, "plan_create: no memory for %u dispatches",
                         desc->num_dispatches);
    memcpy(plan->dispatches, desc->dispatches, num_dispatches * sizeof *plan->dispatches);
    if (desc->num_bindings)
        memcpy(plan->bindings, desc->bindings, desc->num_bindings * sizeof *plan->bindings);
    if (desc->num_args_bytes)
        memcpy(plan->args, desc->args, desc->num_args_bytes);
    return MTLQ_OK;
}

static int32_t bind_buffer(mtlq_plan *plan, uint32_t index)
{
    const mtlq_binding *binding = &plan->bindings[index];
    mtlq_buffer *buffer =
        mtlq_object_find(plan->object.device, MTLQ_KIND_BUFFER, binding->buffer);
    if (!buffer)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "binding %u: no buffer has id %u", index,
                         binding->buffer);
    if (binding->reserved)
        return mtlq_fail(MTLQ_E_ARGUMENT, "binding %u: reserved is not zero", index);
    if (binding->offset_bytes >= buffer->num_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "binding %u: offset %llu, but buffer %u has %llu bytes",
                         index, (unsigned long long)binding->offset_bytes, binding->buffer,
                         (unsigned long long)buffer->num_bytes);
    if (mtlq_is_page_table(buffer) && binding->offset_bytes % buffer->page_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "binding %u: offset %llu, but kernels see buffer %u as a table of pages of %u "
                         "bytes",
                         index, (unsigned long long)binding->offset_bytes, binding->buffer,
                         buffer->page_bytes);
    buffer->object.num_refs++;
    plan->buffers[index] = buffer;
    if (buffer->contents)
        plan->addresses[index] = buffer->contents + binding->offset_bytes;
    return MTLQ_OK;
}

static int32_t bind_grid(mtlq_plan *plan, uint32_t index)
{
    const mtlq_dispatch *dispatch = &plan->dispatches[index];
    if (dispatch->grid_buffer == MTLQ_NO_ID)
        return MTLQ_OK;
    mtlq_buffer *buffer =
        mtlq_object_find(plan->object.device, MTLQ_KIND_BUFFER, dispatch->grid_buffer);
    if (!buffer)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "dispatch %u: no grid buffer has id %u", index,
                         dispatch->grid_buffer);
    if (dispatch->grid_offset_bytes % 4 ||
        dispatch->grid_offset_bytes + 3ull * sizeof(uint32_t) > buffer->num_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT, "dispatch %u: grid offset %u, buffer of %llu bytes", index,
                         dispatch->grid_offset_bytes, (unsigned long long)buffer->num_bytes);
    if (mtlq_is_page_table(buffer))
        return mtlq_fail(MTLQ_E_ARGUMENT, "dispatch %u: grid in buffer %u, which is a page table here",
                         index, dispatch->grid_buffer);
    buffer->object.num_refs++;
    plan->grid_buffers[index] = buffer;
    return MTLQ_OK;
}

static int32_t check_dispatch(mtlq_plan *plan, uint32_t index, uint32_t num_args_bytes)
{
    const mtlq_dispatch *dispatch = &plan->dispatches[index];
    mtlq_pipeline *pipeline =
        mtlq_object_find(plan->object.device, MTLQ_KIND_PIPELINE, dispatch->pipeline);
    if (!pipeline)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "dispatch %u: no pipeline has id %u", index,
                         dispatch->pipeline);
    pipeline->object.num_refs++;
    plan->pipelines[index] = pipeline;
    if (dispatch->flags & ~MTLQ_BARRIER)
        return mtlq_fail(MTLQ_E_ARGUMENT, "dispatch %u: unknown flags 0x%x", index, dispatch->flags);
    if (dispatch->reserved[0] || dispatch->reserved[1])
        return mtlq_fail(MTLQ_E_ARGUMENT, "dispatch %u: reserved is not zero", index);
    if ((uint64_t)dispatch->first_binding + dispatch->num_bindings > plan->num_bindings)
        return mtlq_fail(MTLQ_E_ARGUMENT, "dispatch %u: bindings from %u, %u of %u", index,
                         dispatch->first_binding, dispatch->num_bindings, plan->num_bindings);
    if (dispatch->args_offset % 16 ||
        (uint64_t)dispatch->args_offset + dispatch->args_bytes > num_args_bytes)
        return mtlq_fail(MTLQ_E_ARGUMENT,
                         "dispatch %u: argument offset %u (a multiple of 16), %u bytes of %u", index,
                         dispatch->args_offset, dispatch->args_bytes, num_args_bytes);
    int32_t status = plan->object.device->backend->check_dispatch(pipeline, dispatch, index);
    return status ? status : bind_grid(plan, index);
}

static int32_t fill_plan(mtlq_plan *plan, const mtlq_plan_desc *desc)
{
    int32_t status = allocate_plan(plan, desc);
    for (uint32_t i = 0; !status && i < plan->num_bindings; i++)
        status = bind_buffer(plan, i);
    for (uint32_t i = 0; !status && i < plan->num_dispatches; i++)
        status = check_dispatch(plan, i, desc->num_args_bytes);
    return status;
}

static int32_t create_plan(mtlq_device *device, const mtlq_plan_desc *desc, mtlq_plan **out)
{
    mtlq_object *object;
    int32_t status =
        mtlq_object_create(device, MTLQ_KIND_PLAN, sizeof(mtlq_plan), destroy_plan, &object);
    if (status)
        return status;
    status = fill_plan((mtlq_plan *)object, desc);
    if (status) {
        mtlq_object_release(object);
        return status;
    }
    *out = (mtlq_plan *)object;
    return MTLQ_OK;
}

int32_t mtlq_plan_create(mtlq_device *device, const mtlq_plan_desc *desc, mtlq_plan **out)
{
    if (out)
        *out = NULL;
    if (!device || !desc || !out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "plan_create: NULL argument");
    int32_t status = check_plan_desc(desc);
    if (status)
        return status;
    mtlq_lock(device);
    status = create_plan(device, desc, out);
    mtlq_unlock(device);
    return status;
}

void mtlq_plan_free(mtlq_plan *plan)
{
    mtlq_object_free((mtlq_object *)plan);
}

int32_t mtlq_plan_times(mtlq_plan *plan, uint64_t *nanoseconds, uint32_t count)
{
    if (!plan || !nanoseconds)
        return mtlq_fail(MTLQ_E_ARGUMENT, "plan_times: NULL argument");
    if (count != plan->num_dispatches)
        return mtlq_fail(MTLQ_E_ARGUMENT, "plan_times: count is %u, the plan has %u dispatches",
                         count, plan->num_dispatches);
    if (!plan->nanoseconds)
        return mtlq_fail(MTLQ_E_UNSUPPORTED,
                         "plan_times: open the device with MTLQ_DEVICE_PROFILE");
    mtlq_lock(plan->object.device);
    memcpy(nanoseconds, plan->nanoseconds, count * sizeof *nanoseconds);
    mtlq_unlock(plan->object.device);
    return MTLQ_OK;
}

/* ---- submission ---------------------------------------------------------------------------- */

static int32_t submit_locked(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                             const mtlq_map_op *ops, uint32_t num_ops, uint64_t *ticket)
{
    for (uint32_t i = 0; i < num_plans; i++)
        if (!plans[i] || plans[i]->object.device != device)
            return mtlq_fail(MTLQ_E_ARGUMENT, "submit: plan %u is %s", i,
                             plans[i] ? "of another device" : "NULL");
    int32_t status = mtlq_map_locked(device, ops, num_ops);
    if (status)
        return status;
    return device->backend->submit(device, plans, num_plans, ticket);
}

int32_t mtlq_submit(mtlq_device *device, mtlq_plan *const *plans, uint32_t num_plans,
                    const mtlq_map_op *ops, uint32_t num_ops, uint64_t *ticket)
{
    if (ticket)
        *ticket = 0;
    if (!device || !ticket || (num_plans && !plans))
        return mtlq_fail(MTLQ_E_ARGUMENT, "submit: NULL argument");
    mtlq_lock(device);
    int32_t status = submit_locked(device, plans, num_plans, ops, num_ops, ticket);
    mtlq_unlock(device);
    return status;
}

int32_t mtlq_wait(mtlq_device *device, uint64_t ticket, uint64_t timeout_nanoseconds)
{
    if (!device)
        return mtlq_fail(MTLQ_E_ARGUMENT, "wait: device is NULL");
    return device->backend->wait(device, ticket, timeout_nanoseconds);
}

int32_t mtlq_ticket_time(mtlq_device *device, uint64_t ticket, uint64_t *nanoseconds)
{
    if (nanoseconds)
        *nanoseconds = 0;
    if (!device || !nanoseconds)
        return mtlq_fail(MTLQ_E_ARGUMENT, "ticket_time: NULL argument");
    return device->backend->ticket_time(device, ticket, nanoseconds);
}

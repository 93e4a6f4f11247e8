/* mtlq.c: errors, devices, and the table of their objects. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

_Static_assert(sizeof(mtlq_map_op) == 40, "mtlq_map_op");
_Static_assert(sizeof(mtlq_binding) == 16, "mtlq_binding");
_Static_assert(sizeof(mtlq_dispatch) == 64, "mtlq_dispatch");
_Static_assert(sizeof(mtlq_constant) == 8, "mtlq_constant");
_Static_assert(sizeof(void *) == 8, "the ABI is for 64-bit systems");

static const mtlq_backend *const backends[] = {
    &mtlq_cpu,
#if defined(MTLQ_METAL)
    &mtlq_metal,
#endif
};
#define NUM_BACKENDS (sizeof(backends) / sizeof(backends[0]))

static _Thread_local char last_error[512];

uint32_t mtlq_abi_version(void)
{
    return MTLQ_ABI_MAJOR << 16 | MTLQ_ABI_MINOR;
}

const char *mtlq_last_error(void)
{
    return last_error;
}

int32_t mtlq_fail(int32_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- device -------------------------------------------------------------------------------- */

static int32_t check_desc(const mtlq_device_desc *desc)
{
    if (desc->struct_size < sizeof *desc)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_open: struct_size is %u, at least %zu expected",
                         desc->struct_size, sizeof *desc);
    if (desc->flags & ~MTLQ_DEVICE_PROFILE)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_open: unknown flags 0x%x", desc->flags);
    if (desc->reserved)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_open: reserved is %u, not zero", desc->reserved);
    return MTLQ_OK;
}

static void destroy_device(mtlq_device *device)
{
    device->backend->close(device);
    pthread_mutex_destroy(&device->mutex);
    free(device->objects);
    free(device);
}

int32_t mtlq_device_open(const char *name, const mtlq_device_desc *desc, mtlq_device **out)
{
    static const mtlq_device_desc defaults = {.struct_size = sizeof defaults};
    if (!out)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_open: out is NULL");
    *out = NULL;
    if (!name)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_open: name is NULL");
    if (!desc)
        desc = &defaults;
    int32_t status = check_desc(desc);
    if (status)
        return status;
    const mtlq_backend *backend = NULL;
    for (size_t i = 0; i < NUM_BACKENDS; i++)
        if (!strcmp(name, backends[i]->name))
            backend = backends[i];
    if (!backend)
        return mtlq_fail(MTLQ_E_NOT_FOUND, "no device \"%.40s\" in this build; it has \"cpu\"%s", name,
                         NUM_BACKENDS > 1 ? " and \"metal\"" : "");
    mtlq_device *device = calloc(1, sizeof *device);
    if (!device)
        return mtlq_fail(MTLQ_E_NOMEM, "device_open: out of memory");
    device->backend = backend;
    device->flags = desc->flags;
    device->num_users = 1;
    status = backend->open(device, desc);
    if (status) {
        free(device);
        return status;
    }
    pthread_mutex_init(&device->mutex, NULL);
    *out = device;
    return MTLQ_OK;
}

void mtlq_device_close(mtlq_device *device)
{
    if (!device)
        return;
    mtlq_lock(device);
    uint32_t num_users = --device->num_users;
    mtlq_unlock(device);
    if (!num_users)
        destroy_device(device);
}

int32_t mtlq_device_get_info(mtlq_device *device, mtlq_device_info *info)
{
    if (!device || !info)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_get_info: NULL argument");
    uint32_t size = info->struct_size;
    if (size < sizeof size)
        return mtlq_fail(MTLQ_E_ARGUMENT, "device_get_info: struct_size is %u", size);
    mtlq_device_info full = {.struct_size = size};
    mtlq_lock(device);
    device->backend->get_info(device, &full);
    mtlq_unlock(device);
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return MTLQ_OK;
}

void mtlq_lock(mtlq_device *device)
{
    pthread_mutex_lock(&device->mutex);
}

void mtlq_unlock(mtlq_device *device)
{
    pthread_mutex_unlock(&device->mutex);
}

int32_t mtlq_check_usable(const mtlq_device *device)
{
    if (device->lost)
        return mtlq_fail(MTLQ_E_LOST, "the device failed earlier; close it and open another");
    return MTLQ_OK;
}

/* ---- objects ------------------------------------------------------------------------------- */

/* Index of the first object whose id is not below. */
static uint32_t lower_bound(const mtlq_device *device, uint32_t id)
{
    uint32_t low = 0, high = device->num_objects;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (device->objects[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool grow_table(mtlq_device *device)
{
    if (device->num_objects < device->max_objects)
        return true;
    uint32_t max = device->max_objects ? 2 * device->max_objects : 64;
    mtlq_object **objects = realloc(device->objects, max * sizeof *objects);
    if (!objects)
        return false;
    device->objects = objects;
    device->max_objects = max;
    return true;
}

int32_t mtlq_object_create(mtlq_device *device, mtlq_kind kind, size_t num_bytes,
                           void (*destroy)(mtlq_object *object), mtlq_object **out)
{
    int32_t status = mtlq_check_usable(device);
    if (status)
        return status;
    if (device->last_id == MTLQ_NO_ID - 1)
        return mtlq_fail(MTLQ_E_LIMIT, "the device has given out all its ids; open another");
    mtlq_object *object = calloc(1, num_bytes);
    if (!object || !grow_table(device)) {
        free(object);
        return mtlq_fail(MTLQ_E_NOMEM, "out of memory for an object of the device");
    }
    *object = (mtlq_object){device, kind, ++device->last_id, 1, destroy};
    device->objects[device->num_objects++] = object;
    device->num_users++;
    *out = object;
    return MTLQ_OK;
}

void *mtlq_object_find(const mtlq_device *device, mtlq_kind kind, uint32_t id)
{
    uint32_t index = lower_bound(device, id);
    if (index == device->num_objects)
        return NULL;
    mtlq_object *object = device->objects[index];
    return object->id == id && object->kind == kind ? object : NULL;
}

void mtlq_object_release(mtlq_object *object)
{
    if (--object->num_refs)
        return;
    mtlq_device *device = object->device;
    object->destroy(object);
    uint32_t index = lower_bound(device, object->id);
    device->num_objects--;
    memmove(device->objects + index, device->objects + index + 1,
            (device->num_objects - index) * sizeof *device->objects);
    device->num_users--;
    free(object);
}

void mtlq_object_release_and_unlock(mtlq_object *object)
{
    mtlq_device *device = object->device;
    mtlq_object_release(object);
    bool unused = !device->num_users;
    mtlq_unlock(device);
    if (unused)
        destroy_device(device);
}

void mtlq_object_free(mtlq_object *object)
{
    if (!object)
        return;
    mtlq_lock(object->device);
    mtlq_object_release_and_unlock(object);
}

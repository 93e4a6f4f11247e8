/* cache.h: where a tile of the K/V cache lies. */
#ifndef MTLQ_CACHE_H
#define MTLQ_CACHE_H

#include "common.h"

/* 0: the cache is one range of memory. Else it is a table of the addresses of pages of that size; a
 * tile is whole pages, neighbours in memory (shim/mtlq.h, mtlq_sparse_create). */
constant uint PAGE_BYTES [[function_constant(2)]];

template <typename Half>
inline device Half *cache_tile(device Half *cache, ulong tile, uint tile_halfs)
{
    if (PAGE_BYTES == 0)
        return cache + tile * tile_halfs;
    const uint tile_pages = tile_halfs * 2 / PAGE_BYTES;
    return (device Half *)((device const ulong *)cache)[tile * tile_pages];
}

#endif

// launch.cu: the host half of runtime.h on a CUDA device, and timing. Built into every library.
#include "../emulator/runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <vector>

namespace metal_emulator {
cudaStream_t stream;
}
using metal_emulator::stream;

static std::string error;

static int failed(cudaError_t status)
{
    if (status == cudaSuccess)
        return 0;
    error = cudaGetErrorString(status);
    return 1;
}

// An entry of a translated library launches its kernel; runtime.h names the emulator's kind.
static void enqueue(const metal_launch &launch)
{
    ((void (*)(const metal_launch *))launch.entry)(&launch);
}

extern "C" {

int metal_dispatch(const metal_launch *launch)
{
    enqueue(*launch);
    return failed(cudaGetLastError()) || failed(cudaDeviceSynchronize());
}

const char *metal_error(void)
{
    return error.c_str();
}

void *metal_allocate(uint64_t num_bytes)
{
    void *memory = nullptr;
    return failed(cudaMalloc(&memory, num_bytes ? num_bytes : 1)) ? nullptr : memory;
}

void metal_free(void *memory)
{
    cudaFree(memory);
}

void metal_copy(void *target, const void *source, uint64_t num_bytes)
{
    failed(cudaMemcpy(target, source, num_bytes, cudaMemcpyDefault));
}

// Median milliseconds of a replay of all launches as one graph.
METAL_EXPORT int metal_time(const metal_launch *launches, int count, int repetitions,
                            float *milliseconds)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t begin, end;
    if (metal_dispatch(&launches[0])) // loads the kernel, which a capture may not
        return 1;
    if (failed(cudaStreamCreate(&stream)) || failed(cudaEventCreate(&begin)) ||
        failed(cudaEventCreate(&end)) ||
        failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)))
        return 1;
    for (int i = 0; i < count; ++i)
        enqueue(launches[i]);
    if (failed(cudaStreamEndCapture(stream, &graph)) ||
        failed(cudaGraphInstantiate(&executable, graph, 0)))
        return 1;
    std::vector<float> times;
    for (int i = -3; i < repetitions; ++i) { // three to warm up
        float elapsed;
        if (failed(cudaEventRecord(begin, stream)) || failed(cudaGraphLaunch(executable, stream)) ||
            failed(cudaEventRecord(end, stream)) || failed(cudaEventSynchronize(end)) ||
            failed(cudaEventElapsedTime(&elapsed, begin, end)))
            return 1;
        if (i >= 0)
            times.push_back(elapsed);
    }
    std::sort(times.begin(), times.end());
    *milliseconds = times[times.size() / 2];
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaStreamDestroy(stream);
    stream = nullptr;
    return 0;
}

// Median milliseconds of a copy of num_bytes within the device.
METAL_EXPORT int metal_time_copy(void *target, const void *source, uint64_t num_bytes,
                                 int repetitions, float *milliseconds)
{
    cudaEvent_t begin, end;
    if (failed(cudaEventCreate(&begin)) || failed(cudaEventCreate(&end)))
        return 1;
    std::vector<float> times;
    for (int i = -2; i < repetitions; ++i) {
        float elapsed;
        cudaEventRecord(begin);
        cudaMemcpyAsync(target, source, num_bytes, cudaMemcpyDeviceToDevice);
        cudaEventRecord(end);
        if (failed(cudaEventSynchronize(end)) || failed(cudaEventElapsedTime(&elapsed, begin, end)))
            return 1;
        if (i >= 0)
            times.push_back(elapsed);
    }
    std::sort(times.begin(), times.end());
    *milliseconds = times[times.size() / 2];
    return 0;
}
}

// driver CASES ANSWERS LIBRARY...: runs the cases of a file on the emulator (see case_file.h). A
// program of its own, so that a sanitizer can end it; every buffer is an allocation of its exact
// size.
#include "case_file.h"
#include "runtime.h"

#include <dlfcn.h>

#include <cstring>

struct Library {
    void *handle;
    decltype(&metal_dispatch) dispatch;
    decltype(&metal_error) error;

    void *symbol(const std::string &name) const { return dlsym(handle, name.c_str()); }
};

static std::string run(const CaseDispatch &dispatch, const Library &library,
                       const std::vector<void *> &memory, uint32_t seed)
{
    for (const auto &[index, bits] : dispatch.constants) {
        const std::string name = "metal_constant_" + std::to_string(index);
        auto set = (void (*)(const void *))library.symbol(name);
        if (!set)
            return "no " + name;
        set(&bits);
    }
    metal_launch launch{};
    launch.entry = (metal_entry)library.symbol(std::string("metal_entry_") + dispatch.name);
    if (!launch.entry)
        return std::string("no kernel ") + dispatch.name;
    memcpy(launch.groups, dispatch.groups, sizeof launch.groups);
    memcpy(launch.threads, dispatch.threads, sizeof launch.threads);
    for (const auto &[slot, buffer] : dispatch.bindings)
        launch.buffers[slot] = memory[buffer];
    launch.seed = seed;
    return library.dispatch(&launch) ? std::string(dispatch.name) + ": " + library.error() : "";
}

int main(int argc, char **argv)
{
    std::vector<Library> libraries;
    for (int i = 3; i < argc; ++i) {
        void *handle = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        libraries.push_back({handle, (decltype(&metal_dispatch))dlsym(handle, "metal_dispatch"),
                             (decltype(&metal_error))dlsym(handle, "metal_error")});
    }
    CaseReader reader(argv[1]);
    FILE *answers = fopen(argv[2], "wb");
    for (uint32_t i = 0; i < reader.num_cases(); ++i) {
        Case c = reader.next();
        std::vector<void *> memory;
        for (const CaseBuffer &buffer : c.buffers) {
            memory.push_back(malloc(buffer.contents.size()));
            memcpy(memory.back(), buffer.contents.data(), buffer.contents.size());
        }
        std::string error;
        for (const CaseDispatch &dispatch : c.dispatches)
            if (error.empty())
                error = run(dispatch, libraries[dispatch.library], memory, c.seed);
        for (size_t b = 0; b < memory.size(); ++b) {
            memcpy(c.buffers[b].contents.data(), memory[b], c.buffers[b].contents.size());
            free(memory[b]);
        }
        write_answer(answers, error, c.buffers);
    }
    fclose(answers);
}

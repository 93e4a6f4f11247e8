// driver CASES ANSWERS LIBRARY...: runs the cases of a file (see case_file.h) with libraries that
// implement the second half of runtime.h. A
// program of its own, so that a sanitizer can end it; every buffer is an allocation of its exact
// size.
#include "case_file.h"
#include "runtime.h"

#include <dlfcn.h>

#include <cstring>

class Library {
public:
    explicit Library(const char *path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL))
    {
        if (!handle_) {
            fprintf(stderr, "%s\n", dlerror());
            exit(2);
        }
        dispatch = (decltype(dispatch))symbol("metal_dispatch");
        error = (decltype(error))symbol("metal_error");
        allocate = (decltype(allocate))symbol("metal_allocate");
        free = (decltype(free))symbol("metal_free");
        copy = (decltype(copy))symbol("metal_copy");
    }
    void *symbol(const std::string &name) const { return dlsym(handle_, name.c_str()); }

    decltype(&metal_dispatch) dispatch;
    decltype(&metal_error) error;
    decltype(&metal_allocate) allocate;
    decltype(&metal_free) free;
    decltype(&metal_copy) copy;

private:
    void *handle_;
};

// Of the 64-bit offsets in `contents`.
static void make_addresses(std::vector<char> &contents, const void *target)
{
    for (size_t i = 0; i < contents.size(); i += sizeof(uint64_t)) {
        uint64_t address;
        memcpy(&address, &contents[i], sizeof address);
        address += (uint64_t)target;
        memcpy(&contents[i], &address, sizeof address);
    }
}

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
    for (int i = 3; i < argc; ++i)
        libraries.emplace_back(argv[i]);
    const Library &memory_of = libraries[0];
    CaseReader reader(argv[1]);
    FILE *answers = fopen(argv[2], "wb");
    for (uint32_t i = 0; i < reader.num_cases(); ++i) {
        Case c = reader.next();
        std::vector<void *> memory;
        for (const CaseBuffer &buffer : c.buffers)
            memory.push_back(memory_of.allocate(buffer.contents.size()));
        for (size_t b = 0; b < memory.size(); ++b) {
            CaseBuffer &buffer = c.buffers[b];
            if (buffer.target != kNoBuffer)
                make_addresses(buffer.contents, memory[buffer.target]);
            memory_of.copy(memory[b], buffer.contents.data(), buffer.contents.size());
        }
        std::string error;
        for (const CaseDispatch &dispatch : c.dispatches)
            if (error.empty())
                error = run(dispatch, libraries[dispatch.library], memory, c.seed);
        for (size_t b = 0; b < memory.size(); ++b) {
            memory_of.copy(c.buffers[b].contents.data(), memory[b], c.buffers[b].contents.size());
            memory_of.free(memory[b]);
        }
        write_answer(answers, error, c.buffers);
    }
    fclose(answers);
}

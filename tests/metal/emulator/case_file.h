// case_file.h: reads what case_file.py writes. All integers are little-endian 32-bit words unless
// said otherwise.
//   file:     magic, cases
//   case:     buffers, dispatches, seed
//   buffer:   is_output, target, bytes (64-bit), contents; with a target the contents are 64-bit
//             offsets in that buffer, of which the driver makes addresses
//   dispatch: library (index of an argument of the driver), name[64], groups[3], threads[3],
//             constants, (index, bits)..., bindings, (slot, buffer)...
// The driver answers with, for each case: failed, length of the message, message, and unless it
// failed the contents of the output buffers.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

constexpr uint32_t kCaseMagic = 0x4353414d, kNoBuffer = 0xffffffff;

struct CaseBuffer {
    bool is_output;
    uint32_t target;
    std::vector<char> contents;
};
struct CaseDispatch {
    uint32_t library;
    char name[64];
    uint32_t groups[3], threads[3];
    std::vector<std::pair<uint32_t, uint32_t>> constants, bindings;
};
struct Case {
    std::vector<CaseBuffer> buffers;
    std::vector<CaseDispatch> dispatches;
    uint32_t seed;
};

class CaseReader {
public:
    explicit CaseReader(const char *path) : file_(fopen(path, "rb"))
    {
        if (!file_ || word() != kCaseMagic) {
            fprintf(stderr, "%s is not a file of cases\n", path);
            exit(2);
        }
        num_cases_ = word();
    }
    ~CaseReader() { fclose(file_); }
    uint32_t num_cases() const { return num_cases_; }

    Case next()
    {
        Case result;
        result.buffers.resize(word());
        for (CaseBuffer &buffer : result.buffers) {
            buffer.is_output = word();
            buffer.target = word();
            uint64_t num_bytes;
            read(&num_bytes, sizeof num_bytes);
            buffer.contents.resize(num_bytes);
            read(buffer.contents.data(), num_bytes);
        }
        result.dispatches.resize(word());
        for (CaseDispatch &dispatch : result.dispatches) {
            dispatch.library = word();
            read(dispatch.name, sizeof dispatch.name);
            read(dispatch.groups, sizeof dispatch.groups);
            read(dispatch.threads, sizeof dispatch.threads);
            read_pairs(dispatch.constants);
            read_pairs(dispatch.bindings);
        }
        result.seed = word();
        return result;
    }

private:
    void read(void *target, size_t num_bytes)
    {
        if (num_bytes && fread(target, num_bytes, 1, file_) != 1) {
            fprintf(stderr, "the file of cases is cut short\n");
            exit(2);
        }
    }
    uint32_t word()
    {
        uint32_t value;
        read(&value, sizeof value);
        return value;
    }
    void read_pairs(std::vector<std::pair<uint32_t, uint32_t>> &pairs)
    {
        pairs.resize(word());
        for (auto &pair : pairs) {
            pair.first = word();
            pair.second = word();
        }
    }
    FILE *file_;
    uint32_t num_cases_;
};

inline void write_answer(FILE *file, const std::string &error,
                         const std::vector<CaseBuffer> &buffers)
{
    const uint32_t head[2] = {!error.empty(), uint32_t(error.size())};
    fwrite(head, sizeof head, 1, file);
    fwrite(error.data(), 1, error.size(), file);
    if (error.empty())
        for (const CaseBuffer &buffer : buffers)
            if (buffer.is_output)
                fwrite(buffer.contents.data(), 1, buffer.contents.size(), file);
    fflush(file);
}

// The device: threads of a block as fibers, barriers and warps, and who touched which memory when.
//
// Blocks run one after the other. A fiber runs threads until one of them waits; then the next fiber takes those that have
// not begun. The compiler's instrumentation for threads (-fsanitize=thread) calls us at every load and store of the
// kernel: two of them at one place by different threads, one a store and no barrier between, are a race. The first fault
// ends the launch, and `convt3d_device_fault` tells it. The order of blocks and threads follows OMP_NUM_THREADS.
#include "cuda_runtime.h"

#include <link.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace convt3d_device {

Thread now;
dim3 grid, block_size;

namespace {

constexpr size_t STACK = 128 << 10, PAGE = 4096, MOST_SHARED = 227 << 10, USUAL_SHARED = 48 << 10;
constexpr uint32_t NOBODY = ~0u, MANY = ~0u - 1, OF_WARP = 1u << 31;  // several threads; OF_WARP + w: several of warp w

std::string fault;  // the first, with its word: "race: ..."
thread_local char anchor;  // makes this thread's shared memory exist

// --- who touched it last ---

struct Access {
    uint32_t thread = NOBODY, block = 0, epoch = 0, warp_epoch = 0;
    bool atomic = false;
};
struct Cell {
    Access write, read;
};

struct Shadow {  // of global memory: two bytes a cell, page by page
    std::unordered_map<uintptr_t, std::unique_ptr<Cell[]>> pages;
    uintptr_t last = 0;
    Cell* cells = nullptr;

    Cell& at(uintptr_t place)
    {
        const uintptr_t page = place / PAGE;
        if (page != last || !cells) {
            auto& found = pages[page];
            if (!found) found.reset(new Cell[PAGE / 2]);
            last = page, cells = found.get();
        }
        return cells[place % PAGE / 2];
    }
    void forget() { pages.clear(), cells = nullptr; }
};

// --- banks of shared memory ---

// Accesses of one block, by the warp, the place in the code and how often the thread was there: those are one instruction
// of the warp. A bank gives 4 bytes at a time; lanes that want different words of one bank wait for each other.
struct Banks {
    struct Want {
        uint32_t lane, offset, bytes;
    };
    std::unordered_map<uint64_t, uint32_t> visits;  // of a thread to a place
    std::unordered_map<uint64_t, std::vector<Want>> wanted;
    std::unordered_map<const void*, std::pair<uint64_t, uint64_t>> rounds;  // place -> needed, without conflicts

    static uint64_t mixed(const void* site, uint64_t number) { return (uint64_t)(uintptr_t)site * 0x9E3779B97F4A7C15ull + number; }
    void note(const void* site, uint32_t thread, uint32_t offset, uint32_t bytes)
    {
        if (wanted.size() > 20000 || bytes > 16) return;
        const uint32_t nth = visits[mixed(site, thread)]++;
        auto& group = wanted[mixed(site, ((uint64_t)nth << 16) + thread / 32)];
        group.push_back({thread % 32, offset, bytes});
        sites[mixed(site, ((uint64_t)nth << 16) + thread / 32)] = site;
    }
    void count()
    {
        for (const auto& entry : wanted) {
            const uint32_t bytes = std::max(4u, entry.second[0].bytes), lanes = 128 / bytes;  // that are served together
            auto& tally = rounds[sites[entry.first]];
            for (uint32_t first = 0; first < 32; first += lanes) {
                std::vector<uint32_t> words[32];
                uint64_t most = 0;
                for (const auto& want : entry.second)
                    if (want.lane >= first && want.lane < first + lanes)
                        for (uint32_t word = want.offset / 4; word * 4 < want.offset + want.bytes; ++word) {
                            auto& bank = words[word % 32];
                            if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
                            most = std::max<uint64_t>(most, bank.size());
                        }
                tally.first += most, tally.second += most > 0;
            }
        }
        wanted.clear(), visits.clear(), sites.clear();
    }
    std::unordered_map<uint64_t, const void*> sites;
};
Banks banks;

// --- fibers ---

struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    uint32_t thread = NOBODY;  // that it runs
};

struct Warp {
    uint32_t waiting = 0, exited = 0, mask = 0, epoch = 0;
    const void* site = nullptr;
    unsigned long long values[2][32];
    unsigned generation = 0;
};

enum class State : uint8_t { unborn, ready, at_barrier, at_warp, gone };

struct Device {
    // Of a launch.
    const std::function<void()>* body = nullptr;
    const char* name = "";
    uint32_t threads = 0, block = 0, epoch = 0, launches = 0;
    bool fence = false;
    size_t dynamic_bytes = 0, most_dynamic = USUAL_SHARED;
    char* dynamic_memory = nullptr;
    char *shared_begin = nullptr, *shared_end = nullptr;
    // Of a block.
    uint32_t current = NOBODY, begun = 0, waiting = 0, gone = 0;
    int counted = 0, answer = 0;
    const void* barrier_site = nullptr;
    uint32_t barrier_thread = 0;
    std::vector<State> states;
    std::vector<Fiber*> fiber_of;
    std::vector<uint32_t> order;
    std::vector<Warp> warps;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> idle;
    Fiber* running = nullptr;
    ucontext_t scheduler;
    std::vector<Cell> shared_cells, dynamic_cells;
    Shadow global;
};
Device device;

struct Memory {
    char *map, *begin, *end, *map_end;
};
std::vector<Memory> allocations;

int schedule()
{
    const char* told = std::getenv("OMP_NUM_THREADS");
    return told ? std::atoi(told) : 1;
}

// 0, 1, ...; backwards; or mixed, the same way each time.
std::vector<uint32_t> order_of(uint32_t count)
{
    std::vector<uint32_t> order(count);
    const int way = schedule();
    for (uint32_t at = 0; at < count; ++at) order[at] = way % 2 ? at : count - 1 - at;
    uint64_t state = 88172645463325252ull + (uint64_t)way;
    if (way > 2)
        for (uint32_t at = count; at > 1; --at) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            std::swap(order[at - 1], order[state % at]);
        }
    return order;
}

uint3 place_of(uint32_t number, dim3 size)
{
    return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

std::string words(uint3 at)
{
    char text[64];
    std::snprintf(text, sizeof text, "(%u, %u, %u)", at.x, at.y, at.z);
    return text;
}

std::string thread_words(uint32_t thread, uint32_t block)
{
    return "thread " + words(place_of(thread, block_size)) + " of block " + words(place_of(block, grid));
}

// Where in the library an address is: whoever reads it has the line.
std::string site_words(const void* site)
{
    struct Found {
        uintptr_t place, base;
    } found{(uintptr_t)site, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* given) {
            auto& wanted = *(Found*)given;
            for (int at = 0; at < info->dlpi_phnum; ++at) {
                const auto& part = info->dlpi_phdr[at];
                const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
                if (part.p_type == PT_LOAD && wanted.place >= begin && wanted.place < begin + part.p_memsz)
                    return wanted.base = info->dlpi_addr, 1;
            }
            return 0;
        },
        &found);
    char text[40];
    std::snprintf(text, sizeof text, "{+%zx}", (size_t)(found.place - found.base - 1));
    return text;
}

void leave()
{
    if (device.running) swapcontext(&device.running->context, &device.scheduler);
}

void blame(const std::string& text)
{
    if (fault.empty()) fault = text;
}

// --- scheduling ---

void become(uint32_t thread)
{
    device.current = thread;
    now.thread = place_of(thread, block_size);
    now.block = place_of(device.block, grid);
}

bool warp_ready(Warp& warp) { return warp.waiting && (warp.waiting | warp.exited) == (warp.mask | warp.exited); }

void release_warp(uint32_t number)
{
    Warp& warp = device.warps[number];
    if (!warp_ready(warp)) return;
    for (uint32_t lane = 0; lane < 32; ++lane)
        if (warp.waiting >> lane & 1) device.states[number * 32 + lane] = State::ready;
    warp.waiting = 0, ++warp.generation, ++warp.epoch;
}

void release_block()
{
    if (!device.waiting || device.waiting + device.gone < device.threads) return;
    for (auto& state : device.states)
        if (state == State::at_barrier) state = State::ready;
    device.waiting = 0, device.answer = device.counted, device.counted = 0, ++device.epoch;
}

void run_threads()
{
    for (;;) {
        Fiber* own = device.running;
        while (device.begun < device.threads) {
            const uint32_t thread = device.order[device.begun++];
            own->thread = thread;
            device.fiber_of[thread] = own;
            device.states[thread] = State::ready;
            become(thread);
            (*device.body)();
            device.states[thread] = State::gone;
            device.warps[thread / 32].exited |= 1u << thread % 32;
            ++device.gone;
            release_warp(thread / 32);
            release_block();
            if (!fault.empty()) break;
        }
        own->thread = NOBODY;
        device.idle.push_back(own);
        swapcontext(&own->context, &device.scheduler);
    }
}

Fiber* idle_fiber()
{
    if (device.idle.empty()) {
        auto fiber = std::make_unique<Fiber>();
        fiber->stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mprotect(fiber->stack, PAGE, PROT_NONE);
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack;
        fiber->context.uc_stack.ss_size = STACK;
        fiber->context.uc_link = nullptr;
        makecontext(&fiber->context, run_threads, 0);
        device.idle.push_back(fiber.get());
        device.fibers.push_back(std::move(fiber));
    }
    Fiber* found = device.idle.back();
    device.idle.pop_back();
    return found;
}

void go(Fiber* fiber)
{
    device.running = fiber;
    swapcontext(&device.scheduler, &fiber->context);
    device.running = nullptr;
}

void run_block()
{
    device.states.assign(device.threads, State::unborn);
    device.fiber_of.assign(device.threads, nullptr);
    device.warps.assign((device.threads + 31) / 32, Warp{});
    device.begun = device.waiting = device.gone = 0, device.counted = device.answer = 0;
    ++device.epoch;
    for (uint32_t thread = device.threads; thread < 32 * device.warps.size(); ++thread)
        device.warps[thread / 32].exited |= 1u << thread % 32;
    while (device.gone < device.threads && fault.empty()) {
        bool moved = false;
        while (device.begun < device.threads && fault.empty()) go(idle_fiber()), moved = true;
        for (uint32_t at = 0; at < device.threads && fault.empty(); ++at) {
            const uint32_t thread = device.order[at];
            if (device.states[thread] != State::ready) continue;
            become(thread);
            go(device.fiber_of[thread]), moved = true;
        }
        if (!moved && fault.empty()) {
            uint32_t stuck = 0;
            while (device.states[stuck] != State::at_warp && device.states[stuck] != State::at_barrier) ++stuck;
            const bool warp = device.states[stuck] == State::at_warp;
            blame("barrier: " + thread_words(stuck, device.block) + " of `" + device.name + "` waits at " +
                  site_words(warp ? device.warps[stuck / 32].site : device.barrier_site) + " for " +
                  (warp ? "lanes of its warp that never come" : "threads of its block that never come"));
        }
    }
}

void forget_fibers()
{
    for (auto& fiber : device.fibers) munmap(fiber->stack, STACK);
    device.fibers.clear(), device.idle.clear();
}

void find_shared()
{
    anchor = 1;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t size, void*) {
            if (size < offsetof(dl_phdr_info, dlpi_tls_data) + sizeof(void*) || !info->dlpi_tls_data) return 0;
            for (int at = 0; at < info->dlpi_phnum; ++at)
                if (info->dlpi_phdr[at].p_type == PT_TLS) {
                    char* begin = (char*)info->dlpi_tls_data;
                    if (&anchor < begin || &anchor >= begin + info->dlpi_phdr[at].p_memsz) continue;
                    device.shared_begin = begin, device.shared_end = begin + info->dlpi_phdr[at].p_memsz;
                    return 1;
                }
            return 0;
        },
        nullptr);
}

// --- accesses ---

uint32_t warp_of(const Access& access)
{
    if (access.thread == MANY) return NOBODY;
    return access.thread & OF_WARP ? access.thread - OF_WARP : access.thread / 32;
}

bool ordered(const Access& before, uint32_t thread)
{
    if (before.thread == thread && before.block == device.block) return true;
    if (before.block != device.block) return device.fence;
    if (before.epoch != device.epoch) return true;
    return warp_of(before) == thread / 32 && before.warp_epoch != device.warps[thread / 32].epoch;
}

void race(const Access& before, bool wrote, bool writes, const char* space, const void* site)
{
    const std::string other = before.thread & OF_WARP ? "other threads of block " + words(place_of(before.block, grid))
                                                    : thread_words(before.thread, before.block);
    blame("race: " + thread_words(device.current, device.block) + " of `" + device.name + "` " +
          (writes ? "writes" : "reads") + " " + space + " memory at " + site_words(site) + " that " + other +
          (wrote ? " wrote" : " read") + ", with no barrier between");
    leave();
}

void look(Cell& cell, bool writes, bool atomic, const char* space, const void* site)
{
    const uint32_t thread = device.current;
    if (cell.write.thread != NOBODY && !ordered(cell.write, thread) && !(atomic && cell.write.atomic))
        return race(cell.write, true, writes, space, site);
    if (writes && cell.read.thread != NOBODY && !ordered(cell.read, thread)) return race(cell.read, false, true, space, site);
    const Access own{thread, device.block, device.epoch, device.warps[thread / 32].epoch, atomic};
    if (writes) {
        cell.write = own;
        return;
    }
    const Access before = cell.read;
    cell.read = own;
    if (before.thread == NOBODY || before.thread == thread || before.block != device.block || before.epoch != device.epoch) return;
    const uint32_t warp = warp_of(before);
    if (warp != thread / 32) cell.read.thread = MANY;
    else if (before.warp_epoch == own.warp_epoch) cell.read.thread = OF_WARP + warp;
}

void outside(const Memory& memory, const char* place, bool writes, const void* site)
{
    const long past = place >= memory.end ? (long)(place - memory.end) : (long)(place - memory.begin);
    blame("out of bounds: " + thread_words(device.current, device.block) + " of `" + device.name + "` " +
          (writes ? "writes" : "reads") + " at " + site_words(site) + ", " + std::to_string(past < 0 ? -past : past) +
          " bytes " + (past < 0 ? "before" : "behind the end of") + " " + std::to_string(memory.end - memory.begin) +
          " bytes of " + (memory.map == device.dynamic_memory ? "dynamic shared memory" : "cudaMalloc"));
    leave();
}

void touch(const void* address, size_t bytes, bool writes, const void* site, bool atomic = false)
{
    if (!device.running || device.running->thread == NOBODY || !fault.empty()) return;
    const char* place = (const char*)address;
    if (place >= device.running->stack && place < device.running->stack + STACK) return;
    if (place >= device.shared_begin && place < device.shared_end) {
        if (device.block == 0) banks.note(site, device.current, (uint32_t)(place - device.shared_begin), (uint32_t)bytes);
        for (size_t at = 0; at < bytes; ++at)
            look(device.shared_cells[(size_t)(place - device.shared_begin) + at], writes, atomic, "shared", site);
        return;
    }
    for (const auto& memory : allocations)
        if (place >= memory.map && place < memory.map_end) {
            if (place < memory.begin || place + bytes > memory.end) return outside(memory, place, writes, site);
            if (memory.map != device.dynamic_memory) break;
            if (device.block == 0) banks.note(site, device.current, (uint32_t)(place - memory.begin), (uint32_t)bytes);
            for (size_t at = 0; at < bytes; ++at)
                look(device.dynamic_cells[(size_t)(place - memory.begin) + at], writes, atomic, "shared", site);
            return;
        }
    for (size_t at = 0; at < bytes && bytes > 1; at += 2) look(device.global.at((uintptr_t)place + at), writes, atomic, "global", site);
}

Memory mapped(size_t bytes)
{
    const size_t room = (bytes + PAGE - 1) / PAGE * PAGE + PAGE, map = room + PAGE;
    char* begin = (char*)mmap(nullptr, map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) trap("cudaMalloc finds no memory");
    std::memset(begin, 0xff, room);
    mprotect(begin + room, PAGE, PROT_NONE);
    const size_t start = (room - bytes) / 256 * 256;
    return {begin, begin + start, begin + start + bytes, begin + map};
}

}  // namespace

// --- what kernels call ---

void trap(const char* words)
{
    blame(std::string("crash: ") + words + (device.running ? " by " + thread_words(device.current, device.block) : ""));
    for (;;) {
        leave();
        if (!device.running) _exit(1);
    }
}

int barrier_with(int value, int how, const void* site)
{
    const uint32_t thread = device.current;
    if (device.waiting == 0) device.barrier_site = site, device.barrier_thread = thread, device.counted = how == 1;
    else if (device.barrier_site != site) {
        blame("barrier: " + thread_words(thread, device.block) + " of `" + device.name + "` waits at " + site_words(site) +
              ", " + thread_words(device.barrier_thread, device.block) + " at another barrier, " + site_words(device.barrier_site));
        leave();
    }
    if (how == 0) device.counted += value != 0;
    if (how == 1) device.counted &= value != 0;
    if (how == 2) device.counted |= value != 0;
    device.states[thread] = State::at_barrier, ++device.waiting;
    release_block();
    if (device.states[thread] == State::at_barrier) {
        leave();
        become(thread);
    }
    return device.answer;
}

void barrier(const void* site) { barrier_with(0, 0, site); }

static unsigned meet(unsigned mask, unsigned long long bits, const void* site)
{
    const uint32_t thread = device.current;
    Warp& warp = device.warps[thread / 32];
    const unsigned generation = warp.generation, side = generation % 2;
    if (!(mask >> thread % 32 & 1)) trap("a warp operation whose mask leaves out the caller, called");
    if (warp.waiting && (warp.mask != mask || warp.site != site)) {
        blame("barrier: " + thread_words(thread, device.block) + " of `" + device.name + "` meets its warp at " +
              site_words(site) + ", others wait at " + site_words(warp.site) + " or with another mask");
        leave();
    }
    warp.mask = mask, warp.site = site, warp.waiting |= 1u << thread % 32;
    warp.values[side][thread % 32] = bits;
    device.states[thread] = State::at_warp;
    release_warp(thread / 32);
    if (device.states[thread] == State::at_warp) {
        leave();
        become(thread);
    }
    return side;
}

void warp_barrier(unsigned mask, const void* site) { meet(mask, 0, site); }

unsigned long long shuffled(unsigned mask, unsigned long long bits, Shuffle how, int argument, int width, const void* site)
{
    const unsigned side = meet(mask, bits, site);
    const int lane = (int)(device.current % 32), first = lane / width * width;
    int from = lane;
    if (how == Shuffle::index) from = first + (argument & (width - 1));
    if (how == Shuffle::up && lane - argument >= first) from = lane - argument;
    if (how == Shuffle::down && lane + argument < first + width) from = lane + argument;
    if (how == Shuffle::exclusive && ((lane ^ argument) < first + width)) from = lane ^ argument;
    Warp& warp = device.warps[device.current / 32];
    return (mask >> from & 1) ? warp.values[side][from] : bits;
}

unsigned ballot(unsigned mask, int value, const void* site)
{
    const unsigned side = meet(mask, value != 0, site);
    const Warp& warp = device.warps[device.current / 32];
    unsigned found = 0;
    for (uint32_t lane = 0; lane < 32; ++lane)
        if (mask >> lane & ~warp.exited >> lane & 1 && warp.values[side][lane]) found |= 1u << lane;
    return found;
}

unsigned active() { return 1u << device.current % 32; }
void fenced() { device.fence = true; }
void atomic(const void* place, size_t bytes, const void* site) { touch(place, bytes, true, site, true); }
void* dynamic_shared()
{
    for (const auto& memory : allocations)
        if (memory.map == device.dynamic_memory) return memory.begin;
    return nullptr;
}

void largest_shared(size_t bytes)
{
    if (bytes > MOST_SHARED) trap("cudaFuncSetAttribute asks for more shared memory than any GPU has (227 KiB)");
    device.most_dynamic = std::max(device.most_dynamic, bytes);
}

void* allocate(size_t bytes)
{
    allocations.push_back(mapped(bytes));
    return allocations.back().begin;
}

void release(void* place)
{
    for (size_t at = 0; at < allocations.size(); ++at)
        if (allocations[at].begin == place) {
            munmap(allocations[at].map, (size_t)(allocations[at].map_end - allocations[at].map));
            allocations.erase(allocations.begin() + (long)at);
            return;
        }
    if (place) trap("cudaFree of what cudaMalloc has not given");
}

void launch(dim3 blocks, dim3 threads, size_t shared, const char* name, const std::function<void()>& body)
{
    if (!fault.empty()) return;
    const uint64_t all = (uint64_t)threads.x * threads.y * threads.z, many = (uint64_t)blocks.x * blocks.y * blocks.z;
    const char* wrong = nullptr;
    if (!all || all > 1024 || threads.x > 1024 || threads.y > 1024 || threads.z > 64) wrong = "1 to 1024 threads (at most 64 along z)";
    if (!many || blocks.x > 0x7fffffffu || blocks.y > 65535 || blocks.z > 65535) wrong = "1 to 2147483647 x 65535 x 65535 blocks";
    if (shared > device.most_dynamic) wrong = "at most 48 KiB of dynamic shared memory, unless cudaFuncSetAttribute asks for more";
    if (wrong) {
        blame("crash: the launch of `" + std::string(name) + "` with " + std::to_string(many) + " blocks of " +
              std::to_string(all) + " threads and " + std::to_string(shared) + " bytes fails: a GPU takes " + wrong);
        return;
    }
    grid = blocks, block_size = threads;
    device.body = &body, device.name = name, device.threads = (uint32_t)all, device.fence = false;
    find_shared();
    device.dynamic_bytes = shared;
    if (shared) {
        allocations.push_back(mapped(shared));
        device.dynamic_memory = allocations.back().map;
    }
    device.global.forget();
    device.order = order_of((uint32_t)all);
    const bool forward = schedule() % 2;
    const size_t statics = (size_t)(device.shared_end - device.shared_begin);
    for (uint64_t at = 0; at < many && fault.empty(); ++at) {
        device.block = (uint32_t)(forward ? at : many - 1 - at);
        std::memset(device.shared_begin, 0xff, statics);
        device.shared_cells.assign(statics, Cell{});
        if (shared) std::memset(dynamic_shared(), 0xff, shared);
        device.dynamic_cells.assign(shared, Cell{});
        run_block();
        if (device.block == 0) banks.count();
    }
    if (shared) release(dynamic_shared());
    device.dynamic_memory = nullptr;
    if (!fault.empty()) forget_fibers();
}

}  // namespace convt3d_device

// --- what the compiler's instrumentation calls ---

using convt3d_device::touch;
#define CONVT3D_SIZES(make) make(1) make(2) make(4) make(8) make(16)
#define CONVT3D_HOOKS(n)                                                                                                \
    void __tsan_read##n(void* p) { touch(p, n, false, __builtin_return_address(0)); }                                   \
    void __tsan_write##n(void* p) { touch(p, n, true, __builtin_return_address(0)); }                                   \
    void __tsan_unaligned_read##n(void* p) { touch(p, n, false, __builtin_return_address(0)); }                         \
    void __tsan_unaligned_write##n(void* p) { touch(p, n, true, __builtin_return_address(0)); }
extern "C" {
CONVT3D_SIZES(CONVT3D_HOOKS)
void __tsan_read_range(void* p, size_t n) { touch(p, n, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { touch(p, n, true, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

struct Place {
    const char* file;
    uint32_t line, column;
};
struct Kind {
    uint16_t kind, info;
    char name[1];
};
struct Bounds {
    Place place;
    const Kind *array, *index;
};
void __ubsan_handle_out_of_bounds(Bounds* data, uintptr_t index)
{
    using namespace convt3d_device;
    if (!device.running) return;
    blame("out of bounds: index " + std::to_string((long)index) + " of an array " + data->array->name + " on line " +
          std::to_string(data->place.line) + ", by " + thread_words(device.current, device.block) + " of `" + device.name + "`");
    leave();
}

/* Where threads of a warp wait for each other's banks of shared memory, the worst place; or nothing. */
const char* convt3d_device_banks()
{
    using namespace convt3d_device;
    static std::string told;
    told.clear();
    double worst = 1.0;
    for (const auto& entry : banks.rounds) {
        const double times = (double)entry.second.first / (double)std::max<uint64_t>(1, entry.second.second);
        if (times <= worst) continue;
        worst = times;
        char text[64];
        std::snprintf(text, sizeof text, " takes %.1f times the cycles that it needs", times);
        told = "shared memory at " + site_words(entry.first) + text;
    }
    if (told.empty() && !banks.rounds.empty()) told = "none";
    banks.rounds.clear();
    return told.c_str();
}

/* What went wrong in the last call, "word: detail", or nothing. */
const char* convt3d_device_fault()
{
    static std::string told;
    told = convt3d_device::fault;
    convt3d_device::fault.clear();
    return told.c_str();
}
}

// The device: threads of a block as fibers, barriers and warps, and who touched which memory when.
//
// Blocks run one after the other. A fiber runs threads until one of them waits; then the next fiber takes those that have
// not begun. The compiler's instrumentation for threads (-fsanitize=thread) calls us at every load and store of the
// kernel: two of them at one place by different threads, one a store and no barrier between, are a race; so are those of
// launches in different streams that nothing has ordered. The first fault ends the launch, and `convt3d_device_fault`
// tells it. The order of blocks and threads follows OMP_NUM_THREADS.
#include "cuda_runtime.h"

#include <csetjmp>
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
constexpr size_t MOST_MEMORY = 80ull << 30;
constexpr uint32_t NOBODY = ~0u, MANY = ~0u - 1, OF_WARP = 1u << 31;  // several threads; OF_WARP + w: several of warp w

std::string fault;  // the first, with its word: "race: ..."
thread_local char anchor;  // makes this thread's shared memory exist
thread_local char behind_shared[64 << 10];  // of the kernel, which is linked first: nobody's

// --- who touched it last ---

struct Access {
    uint32_t thread = NOBODY, block = 0, epoch = 0, warp_epoch = 0;
    uint32_t launch : 31;
    uint32_t atomic : 1;
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
    void forget(uintptr_t begin, uintptr_t end)
    {
        for (uintptr_t page = begin / PAGE; page < (end + PAGE - 1) / PAGE; ++page) pages.erase(page);
        cells = nullptr;
    }
};

// Of each stream, and of the host, the last launch of every stream that is over before its next one. What the legacy
// stream (0) does, others wait for, and it for them.
struct Streams {
    using Clock = std::vector<uint32_t>;
    std::vector<Clock> clocks{Clock{0}};
    std::vector<bool> apart{false};  // made with cudaStreamNonBlocking: does not wait for the legacy stream
    Clock host;
    std::vector<Clock> events;
    std::vector<uint32_t> stream_of{0}, number_of{0};  // by launch; 0 is none

    static void join(Clock& into, const Clock& other)
    {
        into.resize(std::max(into.size(), other.size()));
        for (size_t at = 0; at < other.size(); ++at) into[at] = std::max(into[at], other[at]);
    }
    uint32_t begin(uint32_t stream)
    {
        Clock& own = clocks[stream];
        join(own, host);
        if (!apart[stream] && stream) join(own, clocks[0]);
        for (uint32_t other = 1; other < clocks.size() && !stream; ++other)
            if (!apart[other]) join(own, clocks[other]);
        own.resize(std::max<size_t>(own.size(), stream + 1));
        stream_of.push_back(stream), number_of.push_back(++own[stream]);
        return (uint32_t)stream_of.size() - 1;
    }
    bool before(uint32_t launch, uint32_t now) const  // whether an earlier launch is over when this one begins
    {
        const Clock& clock = clocks[stream_of[now]];
        return stream_of[launch] < clock.size() && clock[stream_of[launch]] >= number_of[launch];
    }
    void forget()  // all launches; streams and events stay, since a kernel may keep them
    {
        for (auto& clock : clocks) clock.clear();
        for (auto& clock : events) clock.clear();
        host.clear(), stream_of.assign(1, 0), number_of.assign(1, 0);
    }
};
Streams streams;

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
    ucontext_t context;  // for the first time
    jmp_buf place;  // for the others: without a call of the system
    bool begun = false;
    char* stack = nullptr;
    uint32_t thread = NOBODY;  // that it runs
};

struct Meeting {  // of the lanes of a mask
    uint32_t waiting = 0, mask = 0, generation = 0;
    uint32_t gave[2] = {0, 0};  // lanes that were there, in turn
    bool orders = false;  // memory, too: shuffles and votes do not
    const void* site = nullptr;
};

struct Warp {
    uint32_t exited = 0, epoch = 0, together = 0;
    Meeting meetings[32];  // by the first lane of the mask: parts of a warp may meet each for itself
};

struct Values {  // that lanes of one meeting exchange, in turn in one half and the other
    unsigned long long of[2][32];
};

enum class State : uint8_t { unborn, ready, at_barrier, at_warp, at_phase, alone, gone };

// Copies that a thread has asked for, and that happen when it waits for them: who reads too early finds what was there.
struct Copies {
    struct One {
        char* to;
        const char* from;
        size_t bytes, zeros;
        const void* site;
    };
    std::vector<std::vector<One>> batches{1};
};
struct Waiting {  // for a barrier in memory to be in another phase than it was
    const uint32_t* phase;
    uint32_t old;
    const void* site;
};


struct Device {
    // Of a launch.
    const std::function<void()>* body = nullptr;
    const char* name = "";
    uint32_t threads = 0, block = 0, epoch = 0, launch = 0;
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
    std::vector<Values> values;  // 32 of each warp
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> idle;
    std::vector<Copies> copies;
    std::vector<Waiting> phases;
    Fiber* running = nullptr;
    jmp_buf scheduler;
    std::vector<Cell> shared_cells, dynamic_cells;
    Shadow global;
};
Device device;

struct Memory {
    char *map, *begin, *end, *map_end;
    bool shared_with_host = false;
};
std::vector<Memory> allocations, freed;  // whose addresses nothing else has until the call ends
struct Given {  // an array of the problem
    std::string name;
    const char *begin, *end;
};
std::vector<Given> given_arrays;
constexpr long NEAR = 16 << 10;  // bytes beside an array that are no other's

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
    if (device.running && !_setjmp(device.running->place)) _longjmp(device.scheduler, 1);
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

void release_meeting(uint32_t number, Meeting& meeting)
{
    Warp& warp = device.warps[number];
    if (!meeting.waiting || (meeting.waiting | warp.exited) != (meeting.mask | warp.exited)) return;
    for (uint32_t lane = 0; lane < 32; ++lane)
        if (meeting.waiting >> lane & 1) device.states[number * 32 + lane] = State::ready;
    meeting.gave[meeting.generation % 2] = meeting.waiting;
    meeting.waiting = 0, ++meeting.generation, warp.epoch += meeting.orders;
}

void release_warp(uint32_t number)
{
    for (Meeting& meeting : device.warps[number].meetings) release_meeting(number, meeting);
}

void release_block()
{
    if (!device.waiting || device.waiting + device.gone < device.threads) return;
    for (auto& state : device.states)
        if (state == State::at_barrier) state = State::ready;
    device.waiting = 0, device.answer = device.counted, device.counted = 0, ++device.epoch;
}

// Lanes that ask who is with them: those of a warp that came to the same place, once nobody else can go on.
bool release_together()
{
    for (size_t number = 0; number < device.warps.size(); ++number) {
        Warp& warp = device.warps[number];
        const void* site = nullptr;
        warp.together = 0;
        for (uint32_t thread = (uint32_t)number * 32; thread < std::min<size_t>(device.threads, number * 32 + 32); ++thread) {
            if (device.states[thread] != State::alone || (site && site != device.phases[thread].site)) continue;
            site = device.phases[thread].site;
            warp.together |= 1u << thread % 32;
            device.states[thread] = State::ready;
        }
        if (warp.together) return true;
    }
    return false;
}

std::string stuck_words()
{
    uint32_t stuck = 0;
    while (device.states[stuck] == State::gone) ++stuck;
    const void* site = device.barrier_site;
    const char* missing = "threads of its block that never come";
    if (device.states[stuck] == State::at_warp) site = device.phases[stuck].site, missing = "lanes of its warp that never come";
    if (device.states[stuck] == State::at_phase) site = device.phases[stuck].site, missing = "arrivals that never come";
    return "barrier: " + thread_words(stuck, device.block) + " of `" + device.name + "` waits at " + site_words(site) + " for " + missing;
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
        leave();
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
    if (!_setjmp(device.scheduler)) {
        if (fiber->begun) _longjmp(fiber->place, 1);
        fiber->begun = true;
        setcontext(&fiber->context);
    }
    device.running = nullptr;
}

void run_block()
{
    device.states.assign(device.threads, State::unborn);
    device.fiber_of.assign(device.threads, nullptr);
    device.copies.assign(device.threads, Copies{});
    device.phases.assign(device.threads, Waiting{});
    device.warps.assign((device.threads + 31) / 32, Warp{});
    device.values.resize(32 * device.warps.size());
    device.begun = device.waiting = device.gone = 0, device.counted = device.answer = 0;
    ++device.epoch;
    for (uint32_t thread = device.threads; thread < 32 * device.warps.size(); ++thread)
        device.warps[thread / 32].exited |= 1u << thread % 32;
    while (device.gone < device.threads && fault.empty()) {
        bool moved = false;
        while (device.begun < device.threads && fault.empty()) go(idle_fiber()), moved = true;
        for (uint32_t at = 0; at < device.threads && fault.empty(); ++at) {
            const uint32_t thread = device.order[at];
            const Waiting& waiting = device.phases[thread];
            if (device.states[thread] == State::at_phase && *waiting.phase != waiting.old) device.states[thread] = State::ready;
            if (device.states[thread] != State::ready) continue;
            become(thread);
            go(device.fiber_of[thread]), moved = true;
        }
        if (!moved && fault.empty() && !release_together()) blame(stuck_words());
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
                    if (behind_shared >= begin) device.shared_end = behind_shared;
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
    if (before.launch != device.launch) return streams.before(before.launch, device.launch);
    if (before.thread == thread && before.block == device.block) return true;
    if (before.block != device.block) return device.fence;
    if (before.epoch != device.epoch) return true;
    return warp_of(before) == thread / 32 && before.warp_epoch != device.warps[thread / 32].epoch;
}

void race(const Access& before, bool wrote, bool writes, const char* space, const void* site)
{
    const std::string own = (device.running ? thread_words(device.current, device.block) + " of `" + device.name + "`" : device.name) +
                            (writes ? " writes " : " reads ") + space + " memory" +
                            (device.running ? " at " + site_words(site) : "") + " that ";
    std::string other = before.thread & OF_WARP ? "other threads of block " + words(place_of(before.block, grid))
                                                : thread_words(before.thread, before.block);
    std::string missing = ", with no barrier between";
    if (before.launch != device.launch) other = "a launch in another stream", missing = ", and no event or synchronisation is between";
    blame("race: " + own + other + (wrote ? " wrote" : " read") + missing);
    leave();
}

void look(Cell& cell, bool writes, bool atomic, const char* space, const void* site)
{
    const uint32_t thread = device.current;
    if (cell.write.thread != NOBODY && !ordered(cell.write, thread) && !(atomic && cell.write.atomic))
        return race(cell.write, true, writes, space, site);
    if (writes && cell.read.thread != NOBODY && !ordered(cell.read, thread)) return race(cell.read, false, true, space, site);
    const Access own{thread, device.block, device.epoch, device.warps[thread / 32].epoch, device.launch, atomic};
    if (writes) {
        cell.write = own;
        return;
    }
    const Access before = cell.read;
    cell.read = own;
    if (before.thread == NOBODY || before.launch != device.launch || before.thread == thread) return;
    if (before.block != device.block || before.epoch != device.epoch) return;
    const uint32_t warp = warp_of(before);
    if (warp != thread / 32) cell.read.thread = MANY;
    else if (before.warp_epoch == own.warp_epoch) cell.read.thread = OF_WARP + warp;
}

void outside(const char* begin, const char* end, const std::string& what, const char* place, bool writes, const void* site)
{
    const long past = place < begin ? (long)(begin - place) : (long)(place - end);
    blame("out of bounds: " + thread_words(device.current, device.block) + " of `" + device.name + "` " +
          (writes ? "writes" : "reads") + " at " + site_words(site) + ", " + std::to_string(past) + " bytes " +
          (place < begin ? "before " : "behind the end of ") + what);
    leave();
}

void lost(bool writes, const void* site, const char* where)
{
    blame("crash: " + thread_words(device.current, device.block) + " of `" + device.name + "` " + (writes ? "writes" : "reads") +
          " at " + site_words(site) + where);
    leave();
}

std::string memory_words(const Memory& memory)
{
    return std::to_string(memory.end - memory.begin) + " bytes of " +
           (memory.map == device.dynamic_memory ? "dynamic shared memory" : "cudaMalloc");
}

// The host's own code, between launches: pointers of the device are not for it.
void host_touches(const char* place, bool writes, const void* site)
{
    bool own = false;
    for (const auto& memory : allocations) own = own || (!memory.shared_with_host && place >= memory.begin && place < memory.end);
    for (const auto& array : given_arrays) own = own || (place >= array.begin && place < array.end);
    if (own)
        blame(std::string("crash: the host ") + (writes ? "writes" : "reads") + " memory of the device at " + site_words(site) +
              ": a GPU's pointers are for kernels and cudaMemcpy");
}

void touch(const void* address, size_t bytes, bool writes, const void* site, bool atomic = false, bool counted = true)
{
    if (!fault.empty()) return;
    const char* place = (const char*)address;
    if (!device.running) return host_touches(place, writes, site);
    if (device.running->thread == NOBODY) return;
    if (place >= device.running->stack && place < device.running->stack + STACK) return;
    if (place >= device.shared_begin && place < device.shared_end) {
        if (counted && device.block == 0) banks.note(site, device.current, (uint32_t)(place - device.shared_begin), (uint32_t)bytes);
        for (size_t at = 0; at < bytes; ++at)
            look(device.shared_cells[(size_t)(place - device.shared_begin) + at], writes, atomic, "shared", site);
        return;
    }
    for (const auto& memory : allocations)
        if (place >= memory.map && place < memory.map_end) {
            if (place < memory.begin || place + bytes > memory.end)
                return outside(memory.begin, memory.end, memory_words(memory), place, writes, site);
            if (memory.map != device.dynamic_memory) break;
            if (counted && device.block == 0) banks.note(site, device.current, (uint32_t)(place - memory.begin), (uint32_t)bytes);
            for (size_t at = 0; at < bytes; ++at)
                look(device.dynamic_cells[(size_t)(place - memory.begin) + at], writes, atomic, "shared", site);
            return;
        }
    if (place >= behind_shared && place < behind_shared + sizeof behind_shared)
        return outside(behind_shared, behind_shared, "static shared memory", place, writes, site);
    for (const auto& memory : freed)
        if (place >= memory.map && place < memory.map_end) return lost(writes, site, ", in memory that cudaFree has taken back");
    if ((uintptr_t)place < PAGE * 16) return lost(writes, site, ", through a null pointer");
    for (const auto& array : given_arrays) {
        if (place >= array.begin && place + bytes <= array.end) break;
        if (place + NEAR >= array.begin && place < array.end + NEAR)
            return outside(array.begin, array.end, "`" + array.name + "`", place, writes, site);
    }
    for (size_t at = 0; at < bytes && bytes > 1; at += 2) look(device.global.at((uintptr_t)place + at), writes, atomic, "global", site);
}

void look_at_static_size()
{
    size_t used = 0;
    for (const Cell& cell : device.shared_cells) used += cell.write.thread != NOBODY || cell.read.thread != NOBODY;
    if (used > USUAL_SHARED)
        blame("compile error: `" + std::string(device.name) + "` uses " + std::to_string(used) +
              " bytes of static shared memory: a GPU's compiler takes 49152, more must be dynamic");
}

Memory mapped(size_t bytes)
{
    const size_t room = (bytes + PAGE - 1) / PAGE * PAGE + PAGE, map = room + PAGE;
    char* begin = (char*)mmap(nullptr, map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return {};
    std::memset(begin, 0xff, room);
    mprotect(begin + room, PAGE, PROT_NONE);
    const size_t start = (room - bytes) / 256 * 256;
    return {begin, begin + start, begin + start + bytes, begin + map, false};
}

}  // namespace

// --- what kernels call ---

void trap(const char* words)
{
    blame(std::string("crash: ") + words + (device.running ? " by " + thread_words(device.current, device.block) : ""));
    for (;;) {
        leave();
        if (device.running) continue;
        std::fprintf(stderr, "%s\n", words);  // the host's code cannot be left in another way
        _exit(1);
    }
}

void unplayed(const char* words)
{
    blame(std::string("compiled, not run: ") + words);
    for (;;) {
        leave();
        if (!device.running) return;
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

// What the lanes of the mask have given, and who of them was there.
struct Given32 {
    const unsigned long long (&of)[32];
    const uint32_t& lanes;

    unsigned long long operator[](int lane) const { return lanes >> lane & 1 ? of[lane] : ~0ull; }  // of nobody: NaN
};

static Given32 meet(unsigned mask, unsigned long long bits, const void* site, bool orders = false)
{
    const uint32_t thread = device.current, lane = thread % 32;
    Warp& warp = device.warps[thread / 32];
    if (!(mask >> lane & 1)) trap("a warp operation whose mask leaves out the caller, called");
    for (const Meeting& other : warp.meetings)
        if (other.waiting && (other.mask & mask) && (other.mask != mask || other.site != site)) {
            blame("barrier: " + thread_words(thread, device.block) + " of `" + device.name + "` meets its warp at " +
                  site_words(site) + ", others wait at " + site_words(other.site) + " or with another mask");
            leave();
        }
    const uint32_t first = (uint32_t)__builtin_ctz(mask);
    Meeting& meeting = warp.meetings[first];
    const uint32_t turn = meeting.generation % 2;
    auto& values = device.values[thread / 32 * 32 + first].of[turn];
    meeting.mask = mask, meeting.site = site, meeting.orders = orders, meeting.waiting |= 1u << lane;
    values[lane] = bits;
    device.phases[thread].site = site, device.states[thread] = State::at_warp;
    release_meeting(thread / 32, meeting);
    if (device.states[thread] == State::at_warp) {
        leave();
        become(thread);
    }
    return {values, meeting.gave[turn]};
}

void warp_barrier(unsigned mask, const void* site) { meet(mask, 0, site, true); }

unsigned long long shuffled(unsigned mask, unsigned long long bits, Shuffle how, int argument, int width, const void* site)
{
    const Given32 values = meet(mask, bits, site);
    const int lane = (int)(device.current % 32), first = lane / width * width;
    int from = lane;
    if (how == Shuffle::index) from = first + (argument & (width - 1));
    if (how == Shuffle::up && lane - argument >= first) from = lane - argument;
    if (how == Shuffle::down && lane + argument < first + width) from = lane + argument;
    if (how == Shuffle::exclusive && ((lane ^ argument) < first + width)) from = lane ^ argument;
    return values[from];
}

unsigned ballot(unsigned mask, int value, const void* site)
{
    const Given32 values = meet(mask, value != 0, site);
    unsigned found = 0;
    for (int lane = 0; lane < 32; ++lane)
        if (values.lanes >> lane & 1 && values[lane]) found |= 1u << lane;
    return found;
}

unsigned active(const void* site)
{
    const uint32_t thread = device.current;
    device.phases[thread].site = site, device.states[thread] = State::alone;
    leave();
    become(thread);
    return device.warps[thread / 32].together;
}

unsigned long long of_lane(unsigned mask, unsigned long long bits, unsigned long long (&all)[32], const void* site)
{
    const Given32 values = meet(mask, bits, site);
    for (int lane = 0; lane < 32; ++lane) all[lane] = values[lane];
    return bits;
}

void wait_for_phase(const uint32_t* phase, uint32_t old, const void* site)
{
    const uint32_t thread = device.current;
    if (*phase != old) return;
    device.phases[thread] = {phase, old, site}, device.states[thread] = State::at_phase;
    leave();
    become(thread);
}

void too_early(const void* site)
{
    blame("race: " + thread_words(device.current, device.block) + " of `" + device.name + "` uses, at " + site_words(site) +
          ", a cuda::barrier in shared memory that nobody has initialised before");
    leave();
}

void next_phase(uint32_t* phase) { ++*phase, ++device.epoch; }

void touched(const void* place, size_t bytes, bool writes, const void* site) { touch(place, bytes, writes, site, false, false); }

void copy_later(void* to, const void* from, size_t bytes, size_t zeros, const void* site)
{
    touch(from, bytes - zeros, false, site);
    touch(to, bytes, true, site);
    device.copies[device.current].batches.back().push_back({(char*)to, (const char*)from, bytes, zeros, site});
}

void commit_copies() { device.copies[device.current].batches.emplace_back(); }

void wait_for_copies(size_t left)
{
    auto& batches = device.copies[device.current].batches;
    for (; batches.size() > left + 1; batches.erase(batches.begin()))
        for (const auto& one : batches.front()) {
            touch(one.to, one.bytes, true, one.site);
            std::memcpy(one.to, one.from, one.bytes - one.zeros);
            std::memset(one.to + one.bytes - one.zeros, 0, one.zeros);
        }
}

size_t committed_copies() { return device.copies[device.current].batches.size() - 1; }

void fenced() { device.fence = true; }
void atomic(const void* place, size_t bytes, const void* site) { touch(place, bytes, true, site, true); }
void* dynamic_shared()
{
    for (const auto& memory : allocations)
        if (memory.map == device.dynamic_memory) return memory.begin;
    return nullptr;
}

static std::vector<void**>& pointers_to_dynamic()  // made by whoever comes first
{
    static std::vector<void**> all;
    return all;
}
Dynamic::Dynamic(void** place) { pointers_to_dynamic().push_back(place); }

void largest_shared(size_t bytes)
{
    if (bytes > MOST_SHARED) trap("cudaFuncSetAttribute asks for more shared memory than any GPU has (227 KiB)");
    device.most_dynamic = std::max(device.most_dynamic, bytes);
}

void* allocate(size_t bytes, bool shared_with_host)
{
    const Memory made = bytes <= MOST_MEMORY ? mapped(bytes) : Memory{};
    if (!made.map) return nullptr;
    allocations.push_back(made);
    allocations.back().shared_with_host = shared_with_host;
    return made.begin;
}

void release(void* place)
{
    for (size_t at = 0; at < allocations.size(); ++at)
        if (allocations[at].begin == place) {
            const Memory& gone = allocations[at];
            device.global.forget((uintptr_t)gone.map, (uintptr_t)gone.map_end);
            mmap(gone.map, (size_t)(gone.map_end - gone.map), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            freed.push_back(gone);
            allocations.erase(allocations.begin() + (long)at);
            return;
        }
    if (place) trap("cudaFree of what cudaMalloc has not given");
}

uint32_t new_stream(bool apart)
{
    streams.clocks.emplace_back(), streams.apart.push_back(apart);
    return (uint32_t)streams.clocks.size() - 1;
}

uint32_t new_event()
{
    streams.events.emplace_back();
    return (uint32_t)streams.events.size();
}

void record_event(uint32_t event, uint32_t stream)
{
    if (!event || event > streams.events.size()) trap("cudaEventRecord of an event that nobody has made");
    streams.begin(stream);
    streams.events[event - 1] = streams.clocks[stream];
}

void wait_for_event(uint32_t stream, uint32_t event)
{
    if (!event || event > streams.events.size()) trap("cudaStreamWaitEvent for an event that nobody has made");
    Streams::join(streams.clocks[stream], streams.events[event - 1]);
}

void host_waits_for_event(uint32_t event)
{
    if (!event || event > streams.events.size()) trap("cudaEventSynchronize for an event that nobody has made");
    Streams::join(streams.host, streams.events[event - 1]);
}

void host_waits(uint32_t stream) { Streams::join(streams.host, streams.clocks[stream]); }

void host_waits_for_all()
{
    for (const auto& clock : streams.clocks) Streams::join(streams.host, clock);
}

void moved(const char* name, void* to, const void* from, size_t bytes, uint32_t stream)
{
    device.launch = streams.begin(stream), device.name = name, device.warps.resize(1);
    device.current = 0, device.block = 0, ++device.epoch;
    const auto own = [&](const void* place, bool writes) {  // pages nobody has touched are the host's, or without interest
        for (uintptr_t at = (uintptr_t)place; at < (uintptr_t)place + bytes && fault.empty(); at += 2)
            if (device.global.pages.count(at / PAGE)) look(device.global.at(at), writes, false, "global", nullptr);
    };
    if (from) own(from, false);
    if (to) own(to, true);
}

void launch(const Launch& how, const char* name, const std::function<void()>& body)
{
    if (!fault.empty()) return;
    if (device.running) return unplayed("a kernel launches another one");
    const dim3 blocks = how.grid, threads = how.block;
    const size_t shared = how.shared;
    const uint64_t all = (uint64_t)threads.x * threads.y * threads.z, many = (uint64_t)blocks.x * blocks.y * blocks.z;
    const char* wrong = nullptr;
    if (!all || all > 1024 || threads.x > 1024 || threads.y > 1024 || threads.z > 64) wrong = "1 to 1024 threads (at most 64 along z)";
    if (!many || blocks.x > 0x7fffffffu || blocks.y > 65535 || blocks.z > 65535) wrong = "1 to 2147483647 x 65535 x 65535 blocks";
    const std::string bound = "at most " + std::to_string(how.bound) + " threads: its __launch_bounds__ say so";
    if (how.bound && all > how.bound) wrong = bound.c_str();
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
    allocations.push_back(mapped(shared));
    device.dynamic_memory = allocations.back().map;
    for (void** place : pointers_to_dynamic()) *place = dynamic_shared();
    device.launch = streams.begin(how.stream);
    device.order = order_of((uint32_t)all);
    const bool forward = schedule() % 2;
    const size_t statics = (size_t)(device.shared_end - device.shared_begin);
    for (uint64_t at = 0; at < many && fault.empty(); ++at) {
        device.block = (uint32_t)(forward ? at : many - 1 - at);
        std::memset(device.shared_begin, 0xff, statics);
        device.shared_cells.assign(statics, Cell{});
        std::memset(dynamic_shared(), 0xff, shared);
        device.dynamic_cells.assign(shared, Cell{});
        run_block();
        if (device.block == 0) banks.count();
        if (device.block == 0 && fault.empty()) look_at_static_size();
    }
    const Memory room = allocations.back();  // nothing is allocated in a launch
    munmap(room.map, (size_t)(room.map_end - room.map));
    allocations.pop_back();
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

struct Mismatch {
    Place place;
    const Kind* type;
    unsigned char logarithm, what;
};
void __ubsan_handle_type_mismatch_v1(Mismatch* data, uintptr_t place)
{
    using namespace convt3d_device;
    if (!device.running || !fault.empty()) return;
    blame("crash: misaligned address on line " + std::to_string(data->place.line) + ": " + data->type->name + " needs a multiple of " +
          std::to_string(1u << data->logarithm) + " bytes, and this one is " + std::to_string(place % (1u << data->logarithm)) +
          " bytes behind one, in " + thread_words(device.current, device.block) + " of `" + device.name + "`");
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

/* The problem's arrays: their names, and where they begin and end, one after the other. */
void convt3d_device_arrays(const char* const* names, const char* const* ends, int count)
{
    convt3d_device::given_arrays.clear();
    for (int at = 0; at < count; ++at) convt3d_device::given_arrays.push_back({names[at], ends[2 * at], ends[2 * at + 1]});
}

/* What went wrong in the last call, "word: detail", or nothing. */
const char* convt3d_device_fault()
{
    static std::string told;
    told = convt3d_device::fault;
    convt3d_device::fault.clear();
    convt3d_device::device.global.forget();
    convt3d_device::streams.forget();
    for (const auto& memory : convt3d_device::freed) munmap(memory.map, (size_t)(memory.map_end - memory.map));
    convt3d_device::freed.clear();
    return told.c_str();
}
}

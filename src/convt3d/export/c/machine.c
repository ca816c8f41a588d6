/* What the processor offers: the best instruction set that the library has code for, caches and cores; and the threads
   that do the work. CONVT3D_ISA means what it means to convt3d. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

static int level_of_host(void) {
    unsigned a, b, c, d, low = 0, high = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    /* sse3, ssse3, fma, cx16, sse4.1, sse4.2, movbe, popcnt, xsave, osxsave, avx, f16c */
    unsigned wanted = 1u << 0 | 1u << 9 | 1u << 12 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 22 | 1u << 23 | 1u << 26 |
                      1u << 27 | 1u << 28 | 1u << 29;
    if ((c & wanted) != wanted)
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    unsigned seven = b;
    if ((seven & (1u << 3 | 1u << 5 | 1u << 8)) != (1u << 3 | 1u << 5 | 1u << 8)) /* bmi, avx2, bmi2 */
        return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & 1u << 5)) /* lzcnt */
        return 0;
    unsigned wide = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31; /* avx512: f, dq, cd, bw, vl */
    if ((low & 0xe6) != 0xe6 || (seven & wide) != wide)
        return 1;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5) ? 3 : 2; /* avx512bf16 */
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>

/* SVE, with vectors of 256 bits or longer ones. */
static int level_of_host(void) {
    enum { HAS_SVE = 1 << 22, GET_LENGTH = 51, LENGTH = 0xffff };
    if (!(getauxval(AT_HWCAP) & HAS_SVE))
        return 0;
    int bytes = prctl(GET_LENGTH, 0, 0, 0, 0);
    return bytes > 0 && (bytes & LENGTH) >= 32;
}
#else
static int level_of_host(void) { return 0; }
#endif

/* The beginning of a file; empty where there is none. */
static void read_file(const char *path, char text[32]) {
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, 31, file) : 0;
    if (file)
        fclose(file);
    text[got] = 0;
}

static i64 number_in(const char *path) {
    char text[32], *unit;
    read_file(path, text);
    i64 value = strtoll(text, &unit, 10);
    return *unit == 'K' ? value << 10 : *unit == 'M' ? value << 20 : *unit == 'G' ? value << 30 : value;
}

static int says(const char *path, const char *word) {
    char text[32];
    read_file(path, text);
    return !strncmp(text, word, strlen(word));
}

static void find_caches(i64 *sizes) {
    cpu_set_t usable;
    int cpu = 0;
    CPU_ZERO(&usable);
    if (!sched_getaffinity(0, sizeof usable, &usable))
        while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &usable))
            cpu++;
    for (int index = 0; index < 10; index++) {
        char path[96], level[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/type", cpu, index);
        if (!says(path, "Data") && !says(path, "Unified"))
            continue;
        snprintf(level, sizeof level, "/sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, index);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, index);
        i64 number_of_level = number_in(level);
        if (number_of_level >= 1 && number_of_level <= 3)
            sizes[number_of_level - 1] = number_in(path);
    }
    if (sizes[0] && sizes[1])
        return;
    int names[3] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    i64 usual[3] = {32 << 10, 512 << 10, 8 << 20};
    for (int n = 0; n < 3; n++) {
        i64 found = sysconf(names[n]);
        sizes[n] = found > 0 ? found : usual[n];
    }
}

static machine host;
static pthread_once_t host_known = PTHREAD_ONCE_INIT;

static void know_host(void) {
    i64 sizes[3] = {0};
    int level = level_of_host() + 1;
    const char *asked = getenv("CONVT3D_ISA");
    level = level < C3D_LEVELS ? level : C3D_LEVELS;
    host.isa = C3D_LEVELS - level; /* the best comes first */
    host.refused = asked && *asked;
    for (int n = host.isa; host.refused && n < C3D_LEVELS; n++)
        if (!strcmp(asked, C3D_ISA[n]) || (!strcmp(asked, "baseline") && n == C3D_LEVELS - 1)) {
            host.isa = n;
            host.refused = 0;
        }
    host.lanes = C3D_VECTOR[host.isa] / (i64)sizeof(number);
    host.registers = C3D_REGISTERS[host.isa];
    find_caches(sizes);
    host.l1 = sizes[0];
    host.l2 = sizes[1];
    host.l3 = sizes[2];
    host.cores = most(1, sysconf(_SC_NPROCESSORS_ONLN));
}

static const machine *this_machine(void) {
    pthread_once(&host_known, know_host);
    return &host;
}

/* --- threads: those of cpu/runtime/team.py, which are started when first needed ----------------------------------- */

enum { MOST_WORKERS = 255, BOX = 256, LISTEN_TURNS = 4000 };

void C3D_ATTEND(void *box, i64 thread, i64 turns);
void C3D_LAUNCH(void *boxes, i64 workers, kernel_fn function, i64 *table, i64 count, i64 turns);

static _Alignas(256) char boxes[BOX * (MOST_WORKERS + 1)];
static _Atomic i64 workers;
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

static void *attend(void *box) {
    C3D_ATTEND(box, (i64)syscall(SYS_gettid), LISTEN_TURNS);
    return NULL;
}

/* A forked child has no workers. */
static void forget_workers(void) {
    workers = 0;
    memset(boxes, 0, sizeof boxes);
    pthread_mutex_init(&growing, NULL);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

static void on_threads(kernel_fn function, i64 *table, i64 count) {
    if (count <= 1) {
        function(table, 0);
        return;
    }
    i64 wanted = least(count - 1, MOST_WORKERS);
    if (workers < wanted) {
        pthread_once(&watched, watch_forks);
        pthread_mutex_lock(&growing);
        sigset_t all, before; /* the program's signals are not for workers */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (workers < wanted) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, attend, boxes + workers * BOX))
                break; /* no more threads allowed: run with fewer */
            pthread_detach(thread);
            workers++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_mutex_unlock(&growing);
    }
    C3D_LAUNCH(boxes, workers, function, table, count, LISTEN_TURNS);
}

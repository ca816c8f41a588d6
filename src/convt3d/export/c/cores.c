/* How many threads a call may use: what the environment says, else the cores of the affinity mask, limited by the CPU
   quota of a container. Follows cpu/plan/cores.py of convt3d. */

enum { MOST_THREADS = 1024 };
#ifndef C3D_ROOT
#define C3D_ROOT "" /* of the system's files */
#endif
#define MOUNT C3D_ROOT "/sys/fs/cgroup"
typedef char line_text[4096];

static void keep_smaller(double *limit, double quota, double period) {
    if (quota > 0 && period > 0 && quota / period < *limit)
        *limit = quota / period;
}

/* Of a folder, and of all above it up to the mount. */
static void limit_by_folders(char *folder, double *limit) {
    for (; strlen(folder) >= strlen(MOUNT); *strrchr(folder, '/') = 0) {
        char path[sizeof(line_text) + 32], text[32];
        double quota = 0, period = 0;
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        read_file(path, text);
        if (sscanf(text, "%lf %lf", &quota, &period) == 2) /* not: max */
            keep_smaller(limit, quota, period);
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        quota = (double)number_in(path);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        keep_smaller(limit, quota, (double)number_in(path));
    }
}

/* Whether a list of words, with commas between them, has one of these. */
static int has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ','))
            return 1;
    return 0;
}

static double cgroup_limit = INFINITY;
static pthread_once_t cgroup_known = PTHREAD_ONCE_INIT;

static void know_cgroup(void) {
    line_text line, folder;
    FILE *file = fopen(C3D_ROOT "/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) { /* number:controllers:/path */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = *path++ = 0;
        int unified = !strcmp(line, "0");
        if (!unified && !has_word(controllers, "cpu"))
            continue;
        const char *below[2] = {unified ? "" : controllers, unified ? "unified" : "cpu"};
        for (int n = 0; n < 2; n++)
            if (snprintf(folder, sizeof folder, MOUNT "/%s/%s", below[n], path) < (int)sizeof folder)
                limit_by_folders(folder, &cgroup_limit);
    }
    if (file)
        fclose(file);
}

/* 0 where the environment gives no count. */
static int usable_threads(void) {
    const char *text = getenv("CONVT3D_NUM_THREADS");
    if (text && text[strspn(text, " \t\n")]) {
        char *end;
        long asked = strtol(text, &end, 10);
        return end[strspn(end, " \t\n")] || asked < 1 || asked > MOST_THREADS ? 0 : (int)asked;
    }
    cpu_set_t usable;
    CPU_ZERO(&usable);
    pthread_once(&cgroup_known, know_cgroup);
    double cores = sched_getaffinity(0, sizeof usable, &usable) ? 1 : CPU_COUNT(&usable);
    double limit = ceil(cgroup_limit);
    return (int)least((i64)(limit < cores ? limit : cores), MOST_THREADS);
}

#include "swx_reactor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "alloc.h"

#define MS INT64_C(1000000)

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif

/* A thing that reads a pipe and has a deadline.  All but `destroyed` is under its node's lock. */
typedef struct {
    int fd, writer;
    swx_node *node;
    size_t bytes, events, dues;
    int64_t deadline, period, called_at;
    bool finish_at_eof, removes_itself;
    bool slow; /* both its due and its destruction */
    int until; /* when each of them ends: when this can be read; 0: at once */
} thing;

static atomic_int destroyed; /* of this test's */
static atomic_int waiting;   /* that have begun to wait in their due */

static void thing_event(void *object, unsigned which, bool readable, bool writable, int64_t now)
{
    thing *t = object;
    char bytes[256];
    CHECK(which == 0 && readable && !writable && now > 0);
    t->events++;
    if (t->removes_itself) {
        swx_reactor_remove(t->node);
    }
    ssize_t size = read(t->fd, bytes, sizeof(bytes));
    if (size > 0) {
        t->bytes += (size_t)size;
    } else if (size == 0) {
        swx_node_unwatch(t->node, t->fd);
        close(t->fd);
        t->fd = -1;
        if (t->finish_at_eof) {
            swx_reactor_remove(t->node);
        }
    }
}

static int64_t thing_deadline(const void *object) { return ((const thing *)object)->deadline; }

static void thing_due(void *object, int64_t now)
{
    thing *t = object;
    char byte;
    CHECK(t->deadline <= now);
    atomic_fetch_add(&waiting, t->until != 0);
    CHECK(!t->until || read(t->until, &byte, 1) == 1);
    t->dues++;
    t->called_at = now;
    t->deadline = t->period ? now + t->period : INT64_MAX;
}

static swx_interest thing_interest(const void *object, unsigned which)
{
    return (swx_interest){ .fd = which == 0 ? ((const thing *)object)->fd : -1, .read = true };
}

static void thing_destroy(void *object)
{
    thing *t = object;
    char byte;
    CHECK(!t->until || read(t->until, &byte, 1) == 1);
    if (t->fd >= 0) {
        close(t->fd);
    }
    if (t->writer >= 0) {
        close(t->writer);
    }
    atomic_fetch_add(&destroyed, 1);
    free(t);
}

static bool thing_slow(const void *object) { return ((const thing *)object)->slow; }

static swx_child *thing_child(void *object)
{
    static swx_child ended = { .pidfd = -1, .reaped = true };
    return ((const thing *)object)->slow ? &ended : NULL;
}

static const swx_node_type type = { .event = thing_event,
                                    .deadline = thing_deadline,
                                    .due = thing_due,
                                    .interest = thing_interest,
                                    .destroy = thing_destroy,
                                    .slow = thing_slow,
                                    .child = thing_child };

static thing *new_thing(void)
{
    int pair[2];
    thing *t = calloc(1, sizeof(*t));
    CHECK(t && pipe2(pair, O_CLOEXEC | O_NONBLOCK) == 0);
    *t = (thing){ .fd = pair[0], .writer = pair[1], .deadline = INT64_MAX };
    return t;
}

static size_t descriptors; /* at the beginning of this test */
static int gates[2];       /* a pipe, for what is slow */

static swx_reactor *begin(void)
{
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0); /* a test may be far ahead of the reactor, which closes */
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ files.rlim_max, files.rlim_max }) == 0);
    atomic_store(&destroyed, 0);
    descriptors = open_descriptors();
    CHECK(pipe2(gates, O_CLOEXEC) == 0);
    swx_reactor *r;
    swx_error err;
    CHECK(swx_reactor_new(&r, &err) == SWX_OK);
    return r;
}

/* Frees the reactor: so many things are destroyed, and no descriptor is left. */
static void end(swx_reactor *r, int things)
{
    swx_reactor_free(r);
    close(gates[0]);
    close(gates[1]);
    CHECK(atomic_load(&destroyed) == things && open_descriptors() == descriptors);
}

static swx_node *add(swx_reactor *r, thing *t)
{
    swx_node *node;
    swx_error err;
    CHECK(swx_reactor_add(r, &node, &type, t, &err) == SWX_OK);
    t->node = node;
    swx_node_unlock(node);
    return node;
}

static void set_deadline(swx_node *node, thing *t, int64_t deadline)
{
    swx_node_lock(node);
    t->deadline = deadline;
    swx_node_unlock(node);
}

static void set_paused(swx_node *node, bool paused)
{
    swx_node_lock(node);
    swx_node_pause(node, paused);
    swx_node_unlock(node);
}

static void nap(void) { nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL); }

/* Waits up to ten seconds for something that holds under the node's lock. */
#define AWAIT(node, condition)                                  \
    do {                                                        \
        bool holds = false;                                     \
        for (int tries = 0; !holds && tries < 20000; tries++) { \
            swx_node_lock(node);                                \
            holds = (condition);                                \
            swx_node_unlock(node);                              \
            if (!holds) {                                       \
                nap();                                          \
            }                                                   \
        }                                                       \
        CHECK(holds);                                           \
    } while (0)

static void await_count(const atomic_int *count, int wanted)
{
    for (int tries = 0; tries < 20000 && atomic_load(count) != wanted; tries++) {
        nap();
    }
    CHECK(atomic_load(count) == wanted);
}

static int64_t cpu_time(void)
{
    struct timespec t;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* The reactor sleeps when there is nothing to do: 100 ms of ours cost it less than 20. */
static void check_calm_at(int line)
{
    int64_t before = cpu_time();
    usleep(100000);
    int64_t spent = cpu_time() - before;
    if (spent >= 20 * MS) {
        fprintf(stderr, "line %d: busy for %lld us of 100 ms\n", line, (long long)(spent / 1000));
        exit(1);
    }
}

/* A regular file cannot be watched: the failure is told, and the object stays the caller's. */
static void test_what_cannot_be_watched(void)
{
    swx_reactor *r = begin();
    thing *t = new_thing();
    int pipe_end = t->fd;
    swx_node *node;
    swx_error err;
    t->fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK(t->fd >= 0 && swx_reactor_add(r, &node, &type, t, &err) == SWX_ESYS);
    CHECK(!node && err.sys_errno == EPERM && strcmp(err.call, "epoll_ctl") == 0);
    CHECK(swx_reactor_count(r) == 0 && destroyed == 0);
    close(pipe_end);
    thing_destroy(t);
    end(r, 1);
}

static void test_events_and_deadlines(void)
{
    swx_reactor *r = begin();
    thing *t = new_thing();
    swx_node *node = add(r, t);
    CHECK(swx_reactor_count(r) == 1);
    CHECK(write(t->writer, "abc", 3) == 3);
    AWAIT(node, t->bytes == 3);
    check_calm_at(__LINE__);
    int64_t wanted = swx_now() + 30 * MS;
    set_deadline(node, t, wanted);
    AWAIT(node, t->dues == 1);
    CHECK(t->called_at >= wanted);
    check_calm_at(__LINE__);
    set_deadline(node, t, swx_now() + 30 * MS); /* moved away before it comes, then a second one sooner */
    set_deadline(node, t, INT64_MAX);
    usleep(60000);
    AWAIT(node, t->dues == 1);
    set_deadline(node, t, INT64_MIN); /* long ago */
    AWAIT(node, t->dues == 2);
    swx_reactor_remove(node);
    await_count(&destroyed, 1);
    CHECK(swx_reactor_count(r) == 0);
    end(r, 1);
}

/* The last reference may go inside of a call on the node, in either thread. */
static void test_removed_inside_of_its_own_call(void)
{
    swx_reactor *r = begin();
    thing *t = new_thing();
    int writer = t->writer;
    t->writer = -1;
    t->removes_itself = true;
    add(r, t);
    CHECK(write(writer, "a", 1) == 1);
    await_count(&destroyed, 1);
    close(writer);
    swx_node *node = add(r, new_thing());
    swx_node_lock(node);
    swx_reactor_remove(node);
    swx_node_unlock(node);
    await_count(&destroyed, 2);
    CHECK(swx_reactor_count(r) == 0);
    end(r, 2);
}

/* Due in the order of their time, whatever the order of adding and of changes. */
static void test_heap(void)
{
    enum { COUNT = 200 };
    swx_reactor *r = begin();
    thing *things[COUNT];
    swx_node *nodes[COUNT];
    unsigned random = 1;
    int64_t start = swx_now() + 50 * MS;
    for (int i = 0; i < COUNT; i++) {
        things[i] = new_thing();
        close(things[i]->writer);
        close(things[i]->fd);
        things[i]->writer = things[i]->fd = -1;
        nodes[i] = add(r, things[i]);
    }
    for (int change = 0; change < 3 * COUNT; change++) {
        random = random * 1103515245 + 12345;
        int i = change < 2 * COUNT ? (int)(random >> 16) % COUNT : change - 2 * COUNT;
        swx_node_lock(nodes[i]);
        if (!things[i]->dues) {
            things[i]->deadline = start + (int64_t)((random >> 8) % 50) * MS;
        }
        swx_node_unlock(nodes[i]);
    }
    for (int i = 0; i < COUNT; i += 7) {
        swx_reactor_remove(nodes[i]);
        nodes[i] = NULL;
    }
    for (int i = 0; i < COUNT; i++) {
        if (nodes[i]) {
            AWAIT(nodes[i], things[i]->dues == 1);
        }
    }
    end(r, COUNT);
}

/* While paused neither events of its first descriptor nor deadlines reach the object, the thread does not spin, and
 * others are served. */
static void test_pause(void)
{
    swx_reactor *r = begin();
    thing *t = new_thing(), *other = new_thing();
    swx_node *node = add(r, t), *other_node = add(r, other);
    set_paused(node, true);
    CHECK(write(t->writer, "abc", 3) == 3);
    check_calm_at(__LINE__);
    swx_node_lock(node);
    CHECK(t->events == 0);
    t->deadline = swx_now() + 5 * MS;
    swx_node_unlock(node);
    usleep(10000);
    CHECK(write(other->writer, "x", 1) == 1);
    AWAIT(other_node, other->bytes == 1);
    check_calm_at(__LINE__);
    swx_node_lock(node);
    CHECK(t->events == 0 && t->dues == 0);
    close(t->writer); /* a hang-up is reported by epoll even to who did not ask */
    t->writer = -1;
    swx_node_unlock(node);
    check_calm_at(__LINE__);
    set_paused(node, false);
    AWAIT(node, t->bytes == 3 && t->dues == 1 && t->fd == -1);
    check_calm_at(__LINE__);
    end(r, 2);
}

/* Others go on while one is destroyed; all are when the reactor is freed. */
static void test_slow_to_destroy(void)
{
    swx_reactor *r = begin();
    for (int round = 0; round < 3; round++) {
        int base = atomic_load(&destroyed);
        thing *slow[2], *other = new_thing();
        swx_node *node = add(r, other);
        for (int i = 0; i < 2; i++) {
            slow[i] = new_thing();
            slow[i]->slow = true;
            slow[i]->until = gates[0];
            swx_reactor_remove(add(r, slow[i]));
        }
        swx_reactor_remove(add(r, new_thing()));
        await_count(&destroyed, base + 1);
        CHECK(write(other->writer, "abc", 3) == 3);
        AWAIT(node, other->bytes == 3);
        CHECK(atomic_load(&destroyed) == base + 1 && write(gates[1], "ab", 2) == 2);
        swx_reactor_remove(node);
        if (round < 2) {
            await_count(&destroyed, base + 4);
        }
    }
    end(r, 12);
}

/* Others go on while one does what it has to do, and it is not watched meanwhile; then it is, or it is destroyed. */
static void test_slow_when_due(void)
{
    swx_reactor *r = begin();
    for (int round = 0; round < 4; round++) {
        int base = atomic_load(&destroyed);
        thing *slow = new_thing(), *later = new_thing(), *other = new_thing();
        slow->slow = later->slow = true;
        slow->until = gates[0];
        swx_node *slow_node = add(r, slow), *later_node = add(r, later), *node = add(r, other);
        set_deadline(slow_node, slow, swx_now());
        await_count(&waiting, round + 1);
        set_deadline(later_node, later, swx_now());
        CHECK(write(slow->writer, "abc", 3) == 3 && write(other->writer, "abc", 3) == 3);
        AWAIT(node, other->bytes == 3);
        if (round == 1) {
            swx_reactor_remove(later_node); /* in the queue, or about to be */
        }
        if (round >= 2) {
            swx_reactor_remove(slow_node);
            CHECK(write(other->writer, "abc", 3) == 3);
            AWAIT(node, other->bytes == 6); /* the reactor has heard of it, and does not wait */
            CHECK(atomic_load(&destroyed) == base);
        }
        if (round == 3) { /* all are destroyed with the reactor */
            CHECK(write(gates[1], "ab", 2) == 2);
            break;
        }
        CHECK(write(gates[1], "a", 1) == 1);
        if (round < 2) {
            AWAIT(slow_node, slow->dues == 1 && slow->bytes == 3);
            swx_reactor_remove(slow_node);
        }
        CHECK(write(gates[1], "a", 1) == 1); /* for its destruction */
        await_count(&destroyed, base + 1 + (round == 1));
        if (round != 1) {
            AWAIT(later_node, later->dues == 1);
            swx_reactor_remove(later_node);
        }
        swx_reactor_remove(node);
        await_count(&destroyed, base + 3);
    }
    end(r, 12);
}

/* Another thread leaves it while the reactor waits for its lock: it is due twice, and the worker gets it once. */
static void test_slow_and_due_again(void)
{
    swx_reactor *r = begin();
    for (int i = 0; i < 3000; i++) {
        thing *t = new_thing();
        t->slow = true;
        swx_node *node = add(r, t);
        set_deadline(node, t, swx_now());
        for (int j = 0; j < 8; j++) {
            swx_node_lock(node);
            sched_yield();
            swx_node_unlock(node);
        }
        swx_reactor_remove(node);
    }
    await_count(&destroyed, 3000);
    end(r, 3000);
}

/* ---- many threads ---- */

enum { THREADS = 4, ROUNDS = 300, KEPT = 16 };

typedef struct {
    swx_reactor *reactor;
    unsigned seed;
    int added;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    swx_node *nodes[KEPT] = { NULL };
    thing *things[KEPT] = { NULL };
    for (int round = 0; round < ROUNDS; round++) {
        w->seed = w->seed * 1103515245 + 12345;
        unsigned random = w->seed >> 16, i = random % KEPT;
        if (!nodes[i]) {
            things[i] = new_thing();
            things[i]->period = random % 3 ? 0 : 2 * MS;
            things[i]->deadline = random % 5 ? swx_now() + MS : INT64_MAX;
            things[i]->slow = random & 1;
            nodes[i] = add(w->reactor, things[i]);
            w->added++;
            continue;
        }
        switch (random / KEPT % 5) {
        case 0:
            swx_reactor_remove(nodes[i]);
            nodes[i] = NULL;
            break;
        case 1:
            swx_node_lock(nodes[i]);
            swx_node_pause(nodes[i], true);
            things[i]->deadline = swx_now() - 1;
            swx_node_unlock(nodes[i]);
            set_paused(nodes[i], false);
            break;
        case 2: /* a descriptor replaced, perhaps by one of the same number */
            swx_node_lock(nodes[i]);
            if (things[i]->fd >= 0) {
                int pair[2];
                swx_node_unwatch(nodes[i], things[i]->fd);
                close(things[i]->fd);
                close(things[i]->writer);
                CHECK(pipe2(pair, O_CLOEXEC | O_NONBLOCK) == 0);
                things[i]->fd = pair[0];
                things[i]->writer = pair[1];
                things[i]->bytes = 0;
            }
            swx_node_unlock(nodes[i]);
            break;
        default:
            swx_node_lock(nodes[i]);
            size_t wanted = things[i]->bytes + 5;
            swx_node_unlock(nodes[i]);
            CHECK(write(things[i]->writer, "hello", 5) == 5);
            AWAIT(nodes[i], things[i]->bytes == wanted);
        }
    }
    for (unsigned i = 0; i < KEPT; i++) {
        if (nodes[i] && i % 2) { /* the others are left to swx_reactor_free */
            swx_reactor_remove(nodes[i]);
        }
    }
    return NULL;
}

/* What is ready when it is added may end at once: its node is known by then. */
static void test_ready_at_once(void)
{
    swx_reactor *r = begin();
    for (int i = 0; i < 2000; i++) {
        thing *t = new_thing();
        close(t->writer);
        t->writer = -1;
        t->finish_at_eof = true;
        add(r, t);
    }
    await_count(&destroyed, 2000);
    end(r, 2000);
}

/* Two events of one round, and the second one's node is removed while the first is being handled.  A copy of its
 * descriptor lives on, so that closing it would not end a watch. */
static atomic_int gate; /* 1: in the first event; 2: go on */

static void gate_event(void *object, unsigned which, bool readable, bool writable, int64_t now)
{
    thing_event(object, which, readable, writable, now);
    atomic_store(&gate, 1);
    await_count(&gate, 2);
}

static void test_removed_between_two_events(void)
{
    swx_node_type gate_type = type;
    swx_reactor *r = begin();
    thing *first = new_thing(), *second = new_thing();
    int first_end = first->writer, second_end = dup(second->writer), copy = dup(second->fd);
    gate_type.event = gate_event;
    CHECK(swx_reactor_add(r, &first->node, &gate_type, first, NULL) == SWX_OK);
    swx_node_unlock(first->node);
    swx_node *node = add(r, second);
    CHECK(write(first_end, "x", 1) == 1);
    await_count(&gate, 1);
    CHECK(write(first_end, "x", 1) == 1 && write(second_end, "x", 1) == 1); /* both wait for the next round */
    atomic_store(&gate, 0);
    atomic_store(&gate, 2);
    await_count(&gate, 1);
    swx_reactor_remove(node);
    atomic_store(&gate, 2);
    await_count(&destroyed, 1);
    close(second_end); /* a hang-up, which is told even to who asks for nothing */
    for (int i = 0; i < 20; i++) {
        nap();
    }
    CHECK(destroyed == 1 && swx_reactor_count(r) == 1);
    close(copy);
    end(r, 2);
}

static void test_threads(void)
{
    swx_reactor *r = begin();
    pthread_t threads[THREADS];
    worker workers[THREADS];
    int added = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){ .reactor = r, .seed = i + 1 };
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        added += workers[i].added;
    }
    end(r, added);
}

static void test_fork(void)
{
#ifndef UNDER_TSAN /* which does not follow a fork of several threads */
    swx_reactor *r = begin();
    thing *t = new_thing();
    swx_node *node = add(r, t);
    AWAIT(node, true);
    pid_t pid = fork();
    if (pid == 0) {
        bool forked = swx_reactor_is_forked(r);
        size_t before = open_descriptors();
        swx_reactor_abandon(r);
        _exit(forked && open_descriptors() == before - 2 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!swx_reactor_is_forked(r) && write(t->writer, "a", 1) == 1);
    AWAIT(node, t->bytes == 1); /* the parent's goes on */
    end(r, 1);
#endif
}

/* Copies, as a child that fork has made has them, hold our descriptors open: closing ours does not take them out of
 * epoll. */
static void test_descriptors_that_are_held_open(void)
{
    enum { COUNT = 8 };
    swx_reactor *r = begin();
    swx_node *nodes[COUNT];
    thing *things[COUNT];
    int writers[COUNT], copies[COUNT];
    for (int i = 0; i < COUNT; i++) {
        things[i] = new_thing();
        nodes[i] = add(r, things[i]);
        writers[i] = dup(things[i]->writer);
        copies[i] = dup(things[i]->fd);
    }
    AWAIT(nodes[0], true);
    for (int i = 0; i < COUNT; i++) {
        swx_node_lock(nodes[i]);
        swx_node_unwatch(nodes[i], -1);
        swx_node_unwatch(nodes[i], things[i]->fd);
        close(things[i]->fd);
        things[i]->fd = -1;
        swx_node_unlock(nodes[i]);
        swx_reactor_remove(nodes[i]);
    }
    await_count(&destroyed, COUNT);
    for (int i = 0; i < COUNT; i++) {
        CHECK(write(writers[i], "stale", 5) == 5);
    }
    thing *t = new_thing();
    swx_node *node = add(r, t);
    CHECK(write(t->writer, "a", 1) == 1);
    AWAIT(node, t->bytes == 1);
    check_calm_at(__LINE__);
    CHECK(t->events == 1);
    for (int i = 0; i < COUNT; i++) {
        close(writers[i]);
        close(copies[i]);
    }
    end(r, COUNT + 1);
}

/* ---- what a machine may refuse ---- */

static int run_refused(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = SWX_COUNT(rules), .filter = rules };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        return 77;
    }
    swx_reactor *r = begin();
    thing *t = new_thing();
    swx_node *node = add(r, t);
    check_calm_at(__LINE__);
    CHECK(write(t->writer, "a", 1) == 1);
    AWAIT(node, t->bytes == 1);
    int64_t wanted = swx_now() + 10 * MS;
    set_deadline(node, t, wanted);
    AWAIT(node, t->dues == 1);
    CHECK(t->called_at >= wanted);
    end(r, 1);
    return 0;
}

/* Older containers answer EPERM, not ENOSYS, to system calls that they do not know. */
static void test_refused_system_call(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        _exit(run_refused());
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        fprintf(stderr, "this kernel has no seccomp filters: what a refused epoll_pwait2 does was not tested\n");
        return;
    }
    CHECK(WEXITSTATUS(status) == 0);
}

static void test_no_descriptors(void)
{
    for (rlim_t room = 0; room < 2; room++) {
        swx_reactor *r;
        swx_error err;
        size_t before = open_descriptors();
        take_descriptors_away(room);
        swx_status status = swx_reactor_new(&r, &err);
        give_descriptors_back();
        CHECK(status == SWX_ESYS && err.sys_errno == EMFILE &&
              strcmp(err.call, room ? "eventfd" : "epoll_create1") == 0 && !r);
        CHECK(open_descriptors() == before);
    }
}

static void test_no_memory(void)
{
#ifdef SWX_ALLOC_TEST
    long live = swx_alloc_live();
    bool succeeded = false;
    for (unsigned long i = 1; !succeeded; i++) {
        swx_reactor *r;
        swx_node *node;
        swx_error err;
        thing *t = new_thing();
        atomic_store(&destroyed, 0);
        swx_alloc_fail_at(i, 0);
        swx_status status = swx_reactor_new(&r, &err);
        if (status == SWX_OK) {
            status = swx_reactor_add(r, &node, &type, t, &err);
            CHECK(status == SWX_OK || swx_reactor_count(r) == 0);
            if (status == SWX_OK) {
                swx_node_unlock(node);
            }
        } else {
            CHECK(!r);
        }
        succeeded = status == SWX_OK;
        CHECK(succeeded || (status == SWX_ENOMEM && err.status == SWX_ENOMEM));
        swx_alloc_fail_at(0, 0);
        swx_reactor_free(r);
        CHECK(atomic_load(&destroyed) == (succeeded ? 1 : 0));
        if (!succeeded) { /* it stayed the caller's */
            thing_destroy(t);
        }
        CHECK(swx_alloc_live() == live);
    }
#endif
}

TEST_MAIN(test_what_cannot_be_watched, test_events_and_deadlines, test_removed_inside_of_its_own_call, test_heap,
          test_pause, test_slow_to_destroy, test_slow_when_due, test_slow_and_due_again, test_ready_at_once,
          test_removed_between_two_events, test_threads, test_fork, test_descriptors_that_are_held_open,
          test_refused_system_call, test_no_descriptors, test_no_memory)

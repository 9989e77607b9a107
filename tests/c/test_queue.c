#include "swx_queue.h"

#include <poll.h>
#include <pthread.h>

#include "harness.h"
#include "alloc.h"

typedef struct {
    swx_queue_link link; /* first, so that a link is its item */
    unsigned thread, number;
} item;

static bool readable(const swx_queue *w)
{
    struct pollfd fd = { .fd = swx_queue_fd(w), .events = POLLIN };
    return poll(&fd, 1, 0) == 1;
}

static swx_queue *new_queue(void)
{
    swx_queue *w;
    CHECK(swx_queue_new(&w, NULL) == SWX_OK);
    return w;
}

static void test_order_and_descriptor(void)
{
    swx_queue *w = new_queue();
    item items[3] = { { .number = 0 }, { .number = 1 }, { .number = 2 } };
    CHECK(!readable(w) && swx_queue_take(w) == NULL);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 3; i++) {
            CHECK(swx_queue_push(w, &items[i].link) && readable(w));
        }
        swx_queue_link *got = swx_queue_take(w);
        for (unsigned i = 0; i < 3; i++, got = got->next) {
            CHECK(got == &items[i].link);
        }
        CHECK(got == NULL && !readable(w) && swx_queue_take(w) == NULL);
    }
    swx_queue_unref(w);
}

static void test_close(void)
{
    swx_queue *w = new_queue();
    item a = { .number = 1 }, b = { .number = 2 };
    CHECK(swx_queue_push(w, &a.link));
    CHECK(swx_queue_close(w) == &a.link && a.link.next == NULL && !readable(w));
    CHECK(!swx_queue_push(w, &b.link) && !readable(w) && swx_queue_take(w) == NULL && swx_queue_close(w) == NULL);
    swx_queue_ref(w);
    swx_queue_unref(w);
    CHECK(!swx_queue_push(w, &b.link)); /* lives as long as a reference */
    swx_queue_unref(w);
    swx_queue_unref(NULL);
}

enum { THREADS = 4, EACH = 5000 };

typedef struct {
    swx_queue *queue;
    item *items;
    unsigned thread;
} pusher;

static void *push_all(void *argument)
{
    pusher *p = argument;
    for (unsigned i = 0; i < EACH; i++) {
        p->items[i] = (item){ .thread = p->thread, .number = i };
        CHECK(swx_queue_push(p->queue, &p->items[i].link));
    }
    swx_queue_unref(p->queue);
    return NULL;
}

/* Nothing is lost, the order of each thread is kept, and no wake-up is missed: poll without a time limit returns. */
static void test_threads(void)
{
    swx_queue *w = new_queue();
    static item items[THREADS][EACH];
    pthread_t threads[THREADS];
    pusher pushers[THREADS];
    unsigned next[THREADS] = { 0 }, total = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        pushers[i] = (pusher){ w, items[i], i };
        swx_queue_ref(w);
        CHECK(pthread_create(&threads[i], NULL, push_all, &pushers[i]) == 0);
    }
    while (total < THREADS * EACH) {
        struct pollfd fd = { .fd = swx_queue_fd(w), .events = POLLIN };
        CHECK(poll(&fd, 1, 60000) == 1);
        for (swx_queue_link *at = swx_queue_take(w); at; at = at->next) {
            const item *got = (const item *)(void *)at;
            CHECK(got->number == next[got->thread]++);
            total++;
        }
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(!readable(w));
    swx_queue_unref(w);
}

static void test_no_memory(void)
{
#ifdef SWX_ALLOC_TEST
    swx_queue *w;
    swx_error err;
    long live = swx_alloc_live();
    swx_alloc_fail_at(1, 0);
    CHECK(swx_queue_new(&w, &err) == SWX_ENOMEM && err.status == SWX_ENOMEM && !w);
    swx_alloc_fail_at(0, 0);
    CHECK(swx_alloc_live() == live);
    w = new_queue();
    swx_queue_unref(w);
    CHECK(swx_alloc_live() == live);
#endif
}

TEST_MAIN(test_order_and_descriptor, test_close, test_threads, test_no_memory)

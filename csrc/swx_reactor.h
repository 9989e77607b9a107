/* swx_reactor.h: one thread that watches the descriptors and deadlines of many objects.
 *
 * A node is an object with a lock, some descriptors and a deadline.  The thread calls the node's functions with the
 * lock held.  Other threads take the same lock (swx_node_lock) to use the object; swx_node_unlock reads its interest
 * and its deadline again.  All that the reactor knows of an object is its functions, and a child that may have to end
 * with it.
 *
 * Locks, outermost first: node -> reactor -> (queue, by the node's own doing).  Never two nodes at once.
 * The thread starts with the first node and ends with swx_reactor_free.  After fork() the child has no thread:
 * swx_reactor_is_forked says so, and nothing else may be called there but swx_reactor_abandon.
 */
#ifndef SWX_REACTOR_H
#define SWX_REACTOR_H

#include "swx.h"
#include "swx_child.h"

typedef struct swx_reactor swx_reactor;
typedef struct swx_node swx_node;

enum { SWX_NODE_FDS = 3 };

typedef struct {
    int fd; /* -1: nothing */
    bool read, write;
} swx_interest;

typedef struct {
    /* Descriptor `which` is readable, writable (or both), at time now.  Rarely that is not so: descriptors must be
     * non-blocking. */
    void (*event)(void *object, unsigned which, bool readable, bool writable, int64_t now);
    /* When due wants to be called; INT64_MAX: never. */
    int64_t (*deadline)(const void *object);
    void (*due)(void *object, int64_t now);
    /* What to watch as the descriptor number `which`.  See swx_node_unwatch. */
    swx_interest (*interest)(const void *object, unsigned which);
    /* Destroys the object of a removed node.  Runs without locks, in the reactor's thread or that of swx_reactor_free.
     */
    void (*destroy)(void *object);
    /* Whether due would delay other nodes for long: then the worker thread calls it, and nothing of the node is watched
     * meanwhile.  May be NULL. */
    bool (*slow)(const void *object);
    /* The child that must end with its whole tree before the object is destroyed; NULL: none.  The worker does both,
     * for many objects at once.  May be NULL. */
    swx_child *(*child)(void *object);
} swx_node_type;

/* Starts nothing yet.  SWX_ENOMEM, SWX_ESYS. */
swx_status swx_reactor_new(swx_reactor **out, swx_error *err);

/* Ends the threads and destroys all nodes.  NULL is legal.  Not from the reactor's thread. */
void swx_reactor_free(swx_reactor *reactor);

/* In a forked child: closes the copied descriptors and calls nothing.  The nodes' memory stays with the child. */
void swx_reactor_abandon(swx_reactor *reactor);
bool swx_reactor_is_forked(const swx_reactor *reactor);

/* Adds an object; starts the thread if needed.  The node comes locked: no event comes before swx_node_unlock, so that
 * the object can learn of its node first.  On failure the object stays the caller's. */
swx_status swx_reactor_add(swx_reactor *reactor, swx_node **out, const swx_node_type *type, void *object,
                           swx_error *err);

/* Hands the node over: the thread unwatches it and has it destroyed, when no call on it is under way.  The caller
 * must not use it after that, but to unlock it: this may be called with the node locked, inside of its object's own
 * calls. */
void swx_reactor_remove(swx_node *node);

void swx_node_lock(swx_node *node);
void swx_node_unlock(swx_node *node);

/* To be called with the node locked, right before the object closes a watched descriptor.  Closing is not enough: if
 * another process holds a copy (between fork and exec, say), epoll would go on reporting it, for a node that may be
 * gone. */
void swx_node_unwatch(swx_node *node, int fd);

/* To be called with the node locked.  While it is paused, the caller watches its first descriptor and its deadline, and
 * the thread does not. */
void swx_node_pause(swx_node *node, bool paused);

size_t swx_reactor_count(swx_reactor *reactor);

#endif

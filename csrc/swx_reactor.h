/* swx_reactor.h: one thread that watches the descriptors and deadlines of many things.
 *
 * A thing is a node: an object with a lock, some descriptors and a deadline.  The thread calls the node's functions
 * with the node's lock held; other threads take the same lock (swx_node_lock) to talk to the object and say afterwards
 * what it wants now (swx_node_unlock re-reads interest and deadline).  The reactor knows nothing of what its nodes are,
 * but that a child may have to end with one.
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
    /* Descriptor `which` is readable, writable (or both), at time now.  Rarely that is not so: descriptors must be
     * non-blocking. */
    void (*event)(void *object, unsigned which, bool readable, bool writable, int64_t now);
    /* When due wants to be called; INT64_MAX: never. */
    int64_t (*deadline)(const void *object);
    void (*due)(void *object, int64_t now);
    /* What to watch: the descriptor number `which` (-1: nothing), and whether for reading and for writing.  See
     * swx_node_unwatch. */
    void (*interest)(const void *object, unsigned which, int *fd, bool *read, bool *write);
    /* Nothing will happen to it any more and nobody but the reactor knows it: the thread removes the node.  Asked with
     * the node locked, after each event.  May be NULL. */
    bool (*finished)(const void *object);
    /* The node was removed and nobody uses the object any more.  Runs without locks, in the reactor's thread, or in
     * that of swx_reactor_free. */
    void (*destroy)(void *object);
    /* Whether due would keep the thread from other nodes for long: another thread, which lives as long as there is
     * something slow to do, calls it then, and nothing of the node is watched meanwhile.  May be NULL. */
    bool (*slow)(const void *object);
    /* What is to end with its whole tree before the object is destroyed, which is slow too: that other thread does
     * both, and ends trees for many objects at once.  NULL: nothing.  May be NULL. */
    swx_child *(*child)(void *object);
} swx_node_type;

/* Starts nothing yet.  SWX_ENOMEM, SWX_ESYS. */
swx_status swx_reactor_new(swx_reactor **out, swx_error *err);

/* Ends the threads and destroys all nodes.  NULL is legal.  Not from the reactor's thread. */
void swx_reactor_free(swx_reactor *reactor);

/* In a forked child: closes the copied descriptors and calls nothing.  The nodes' memory stays with the child. */
void swx_reactor_abandon(swx_reactor *reactor);
bool swx_reactor_is_forked(const swx_reactor *reactor);

/* Adds an object; starts the thread if needed.  *out is set before the object's first event.  On failure the object
 * stays the caller's. */
swx_status swx_reactor_add(swx_reactor *reactor, swx_node **out, const swx_node_type *type, void *object,
                           swx_error *err);

/* Hands the node over: the thread unwatches it and has it destroyed, when no call on it is under way.  The caller
 * must not use it after that, but to unlock it: this may be called with the node locked, inside of its object's own
 * calls. */
void swx_reactor_remove(swx_node *node);

void swx_node_lock(swx_node *node);
void swx_node_unlock(swx_node *node);

/* With the node locked, right before the object closes a descriptor that is watched.  Closing it is not enough: where
 * another process holds a copy (a child between fork and exec, or one that never executes), epoll would go on reporting
 * it, for a node that may be gone by then. */
void swx_node_unwatch(swx_node *node, int fd);

/* With the node locked: while paused, the thread watches neither its first descriptor nor its deadline, because
 * the caller does. */
void swx_node_pause(swx_node *node, bool paused);

/* Nodes in the reactor. */
size_t swx_reactor_count(swx_reactor *reactor);

#endif

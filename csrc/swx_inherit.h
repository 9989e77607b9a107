/* swx_inherit.h: what a program that is started inherits from who starts it, besides arguments, environment and
 * descriptors.
 *
 * Two looks that are equal mean: a program started by the one would have begun as the other has.  A look at a program
 * that was started a while ago, taken before it changed anything itself, and one at the calling thread tell whether
 * that thread would start it the same way now.
 *
 * Looked at: user, groups, capabilities, umask, processors and memory nodes, seccomp, resource limits, priority and
 * scheduling, I/O priority, control groups, namespaces, root and working directory, OOM score, core dump filter.
 * Signals are not, because swx_child resets them.  Not looked at, because only a thread itself can tell: see
 * swx_inherit_own; and keyrings, and what security modules have set for the next exec.
 *
 * The limits in which swx_child keeps its mark count as one value where they are large enough to be one.
 */
#ifndef SWX_INHERIT_H
#define SWX_INHERIT_H

#include <sys/types.h>

#include "swx_buf.h"

/* Appends a look at a process, or with 0 at the calling thread.  About 30 us.  SWX_ESYS: the kernel does not show it
 * all (the process is gone, /proc is closed); SWX_ENOMEM. */
swx_status swx_inherit_look(pid_t pid, swx_buf *out, swx_error *err);

/* Appends what only the calling thread can be asked for: personality, timer slack, secure bits.  SWX_ENOMEM. */
swx_status swx_inherit_own(swx_buf *out, swx_error *err);

#endif

/* swx_inherit.h: what a program that is started inherits from who starts it, besides arguments, environment and
 * descriptors.
 *
 * Two looks that are equal mean: a program started by the one would have begun as the other has.  A look at a program
 * that was started a while ago, taken before it changed anything itself, and one at the calling thread tell whether
 * that thread would start it the same way now.
 *
 * Looked at: user, groups, capabilities, umask, processors and memory nodes, seccomp, resource limits, priority,
 * control groups, namespaces, root and working directory.  Not signals, because swx_child resets them, and nothing that
 * hardly a program ever changes: scheduling policy, I/O priority, OOM score, core dump filter, personality, timer
 * slack.
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

#endif

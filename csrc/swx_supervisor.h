/* swx_supervisor.h: a process that ends, after the program's end, the processes that the program left behind.
 *
 * It sleeps until the program has ended, however that came (SIGKILL, _exit, the OOM killer), then kills everything that
 * carries the program's mark (swx_child.h) and ends itself.  It is an executable of its own (supervisor.c).  It has a
 * session of its own, blocks all signals, is in /, has no environment and no descriptor but the program's pidfd.  It is
 * not the program's child, so that a program that waits for all of its children does not wait for it (unless the
 * program is a subreaper).  Linux 5.3 is needed; on an older kernel nothing is started.
 */
#ifndef SWX_SUPERVISOR_H
#define SWX_SUPERVISOR_H

#include "swx.h"

/* Starts one for the calling process (100 to 200 us).  executable: its absolute path.  *mark: for swx_spawn; 0 where
 * nothing was started.  SWX_ESYS: for want of descriptors, processes or memory; asked again it may succeed. */
swx_status swx_supervisor_start(const char *executable, uint64_t *mark, swx_error *err);

/* The work of the executable: waits for the end of the program behind the pidfd, and kills for a minute at most. */
void swx_supervisor_run(int program, uint64_t mark);

#endif

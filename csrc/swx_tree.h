/* swx_tree.h: finds and kills the processes that a child has started, by their marks (swx_child.h). */
#ifndef SWX_TREE_H
#define SWX_TREE_H

#include "swx_child.h"

/* Looks at all processes and kills (SIGKILL) everything that carries one of the marks, and what descends from it.  Each
 * is stopped before it is killed, until its children are known, for 20 ms in all at most.  Returns how many living
 * processes were found, killed ones that are not gone yet included: ask again until it is 0, which is only said after
 * two looks.  1 also when no look was possible now, for want of descriptors or memory; -1 when there is no /proc.
 * Numbers that cannot be marks find nothing. */
long swx_tree_kill_marked(const uint64_t *marks, size_t count);

/* Which of the marks a living process carries: living[i] for marks[i].  False: no look was possible now. */
bool swx_tree_living(const uint64_t *marks, size_t count, bool *living);

/* One step of ending the child with everything it started: kills what lives of it.  True when nothing does any more and
 * the child was reaped; else call again a moment later. */
bool swx_tree_kill(swx_child *child);

enum { SWX_CHILDREN_AT_ONCE = 64 };

/* Ends up to SWX_CHILDREN_AT_ONCE children with everything they started.  That takes hardly longer than for one,
 * because each look goes through all processes.  If the number of living processes does not fall for a second, the
 * children alone are killed and reaped, which may take another second. */
void swx_tree_end_all(swx_child *const *children, size_t count);

/* Kills unmarked descendants of the child.  To be called before their parents are told to end. */
void swx_tree_kill_orphans(const swx_child *child);

/* Kills those of the child's processes in a group (0: in any) that have a thread in a read of the terminal, and waits
 * (100 ms at most) until each is gone.  A read that began in the foreground does not notice that the foreground was
 * lost, and would take the next input from the shell.  A process that was just woken is not found until it sleeps
 * again: see swx_kernel_reader_of. */
void swx_tree_kill_readers(const swx_child *child, pid_t group, const char *terminal);

/* Whether a bash sleeps in a read of that terminal, also in its `read -t` or where TMOUT is set.  False too where the
 * kernel does not tell. */
bool swx_tree_shell_reads(pid_t shell, const char *terminal);

/* Whether the child, which is a bash, or one of its processes sleeps in such a read. */
bool swx_tree_has_reader(const swx_child *child, const char *terminal);

/* Kills what the child, a shell, waits for: of its session, what is in a group whose leader began after `since`
 * (CLOCK_MONOTONIC, nanoseconds), and what began then in the child's own group, as a command substitution does.  (The
 * reader of `exec > >(tee log)` is there, too.)  The kernel tells that in ticks of 10 ms: of those that began in the
 * same tick, the ones with a number above `last` count as later. */
void swx_tree_kill_begun(const swx_child *child, int64_t since, int64_t last);

#endif

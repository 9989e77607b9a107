/* swx_notice.h: bash's job notices ("[1]+  Done                    sleep 1") at the end of a command's output.
 *
 * Bash prints them right before its prompt, so a job that an earlier command started reports itself in the output of
 * whichever command happens to end next.  The forms are those of bash's jobs.c (pretty_print_job): "[N]", one of
 * "+", "-" or blank, then the state padded to a column of its own, then the job's command.
 */
#ifndef SWX_NOTICE_H
#define SWX_NOTICE_H

#include "swx.h"

/* How many bytes at the end of the text are whole lines of job notices.  0 when there are none.  *lines: how many. */
size_t swx_notice_tail(const uint8_t *text, size_t size, uint32_t *lines);

#endif

/* swx_notice.h: bash's job notices ("[1]+  Done                    sleep 1") at the end of a command's output.
 *
 * Bash prints them right before its prompt, so a job that an earlier command started reports itself in the output of
 * whichever command happens to end next.  The forms are those of bash's jobs.c (pretty_print_job): "[N]", one of
 * "+", "-" or blank, then the state padded to a column of its own, then the job's command.
 */
#ifndef SWX_NOTICE_H
#define SWX_NOTICE_H

#include "swx.h"

/* How many whole lines of the text are job notices, wherever they stand. */
uint32_t swx_notice_count(const uint8_t *text, size_t size);

/* Takes those lines out, in place.  Returns the new size. */
size_t swx_notice_remove(uint8_t *text, size_t size);

#endif

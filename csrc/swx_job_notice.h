/* swx_job_notice.h: bash's job notices ("[1]+  Done                    sleep 1") in a command's output.
 *
 * Bash prints them right before its prompt and when it has waited for a program, wherever the cursor is, so a job that
 * an earlier command started reports itself in the output of whichever command runs then, behind half a line of it
 * perhaps.  The forms are those of bash's jobs.c (pretty_print_job): "[N]", one of "+", "-" or blank, then the state in
 * a column of 24, then the job's command, as many lines of it as the grammar proves; and, where that was started in
 * another directory, a line "(wd now: ...)".
 */
#ifndef SWX_JOB_NOTICE_H
#define SWX_JOB_NOTICE_H

#include "swx.h"

/* How many job notices the text holds, each up to the end of a line; 0 if they are more than `most`. */
uint32_t swx_job_notice_count(const uint8_t *text, size_t size, uint32_t most);

/* The offset of the first notice, or of bytes that may become one; the text's size if there is none. */
size_t swx_job_notice_begin(const uint8_t *text, size_t size);

enum { SWX_JOB_NOTICE_HEAD = 64 }; /* bytes of a notice without its command, at most */

/* Removes the notices in place.  Returns the new size. */
size_t swx_job_notice_remove(uint8_t *text, size_t size);

/* The size of the lines at the beginning that are nothing but notices. */
size_t swx_job_notice_lead(const uint8_t *text, size_t size);

#endif

/* swx_hints.h: what a command may do to the shell and its terminal, by its text: SWX_HINT_... of swx_session.h. */
#ifndef SWX_HINTS_H
#define SWX_HINTS_H

#include "swx_command.h"

/* carrier: the session is behind one. */
unsigned swx_hints_of(const swx_scan *scan, const char *text, size_t size, bool carrier);

#endif

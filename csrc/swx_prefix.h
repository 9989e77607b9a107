/* swx_prefix.h: which bytes a match of a pattern of the NFA may begin with, for swx_skip. */
#ifndef SWX_PREFIX_H
#define SWX_PREFIX_H

#include "swx_nfa.h"
#include "swx_skip.h"

/* Adds every pattern of the NFA to skip: a superset of the first bytes of any match that starts after the
 * stream's beginning.  SWX_OK or SWX_ENOMEM. */
swx_status swx_prefix_add(swx_skip *skip, const swx_nfa *nfa, const swx_regex *regex);

#endif

/* py_match.h: the matcher for Python. */
#ifndef SWX_PY_MATCH_H
#define SWX_PY_MATCH_H

#include "py_core.h"

#include "swx_match.h"

/* Takes the swx_match out of a Matcher, for use without the GIL by one stream.  It is not reset.  NULL with TypeError
 * when object is no Matcher, or RuntimeError when it is in use.  The caller keeps a reference to the object until it
 * calls swx_py_match_give_back; in between Python calls on the object raise RuntimeError. */
swx_match *swx_py_match_take(PyObject *object);

/* Ends the use.  Needs no GIL, only a reference. */
void swx_py_match_give_back(PyObject *object);

#endif

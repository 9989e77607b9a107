/* py_text.h: output as a str, made beside the event loop.
 *
 * The pages of a new text of a megabyte are 250 visits to the kernel, which take several times as long as the copy, and freeing the
 * last one's does as much.  So a thread without the GIL writes a long text, into a str that nobody knows yet.  What is not in ASCII
 * is decoded by whoever takes it: only the interpreter can do that, and only with the GIL.
 */
#ifndef SWX_PY_TEXT_H
#define SWX_PY_TEXT_H

#include "py_core.h"

enum { SWX_PY_LONG = 256 * 1024 }; /* bytes from which on that is worth a thread */

typedef struct swx_py_making swx_py_making;

/* Begins to make what swx_py_text makes of a buffer that `of` owns, which must not change until the end.  `waker` tells by `future`
 * (borrowed, until swx_py_making_drop) when it is made.  NULL without an exception: it has to be made by swx_py_text. */
swx_py_making *swx_py_making_begin(swx_flight *of, const swx_buf *buf, bool crlf, swx_waker *waker, PyObject *future);

bool swx_py_making_done(const swx_py_making *making);

/* The text, once, after it is done.  NULL with an exception set. */
PyObject *swx_py_making_end(swx_py_making *making);

/* Adds the type TextRoom.  0, or -1 with an exception set. */
int swx_py_text_init(PyObject *module);

/* The caller has no more use for it; waits for the thread. */
void swx_py_making_drop(swx_py_making *making, bool forked);

#endif

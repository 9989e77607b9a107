#include "py_match.h"

#include <stdatomic.h>
#include <string.h>

#include "swx_alloc.h"

enum { LONG_FEED = 64 * 1024 }; /* bytes from which on letting other threads run is worth its cost */

#define TYPE_NAME "Matcher"
#define ERROR_NAME "UnsupportedPattern"
#define TABLES_NAME "_match_tables"

typedef struct {
    PyObject_HEAD
    swx_match *match;
    size_t consumed;
    atomic_bool busy; /* someone reads or changes the matcher, perhaps without the GIL */
} Matcher;

/* ---- \d and \w of this interpreter ---- */

/* Appends to `set` the runs of code points first..last that the expression finds. */
static int add_runs(PyObject *expression, uint32_t first, uint32_t last, swx_range *ranges, size_t *count, size_t most)
{
    size_t points = last - first + 1;
    int byte_order = PY_LITTLE_ENDIAN ? -1 : 1, result = -1;
    PyObject *text = NULL, *runs = NULL, *run;
    uint32_t *all = swx_malloc(points * sizeof(*all));
    if (!all) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < points; i++) {
        all[i] = first + i;
    }
    text = PyUnicode_DecodeUTF32((const char *)all, (Py_ssize_t)(points * sizeof(*all)), "surrogatepass", &byte_order);
    runs = text ? PyObject_CallMethod(expression, "finditer", "O", text) : NULL;
    while (runs && (run = PyIter_Next(runs))) {
        Py_ssize_t start, end;
        PyObject *span = PyObject_CallMethod(run, "span", NULL);
        Py_DECREF(run);
        int good = span && PyArg_ParseTuple(span, "nn", &start, &end);
        Py_XDECREF(span);
        if (!good || *count == most) {
            goto done;
        }
        ranges[(*count)++] = (swx_range){ first + (uint32_t)start, first + (uint32_t)end - 1 };
    }
    result = runs && !PyErr_Occurred() ? 0 : -1;
done:
    Py_XDECREF(runs);
    Py_XDECREF(text);
    swx_free(all);
    return result;
}

/* The code points that `source` (a class) matches, as a bytes object of swx_range.  Unicode has letters and digits in
 * planes 0 to 3 and nowhere else, and 14 is looked at because something is there. */
static PyObject *make_table(PyObject *re, const char *source)
{
    enum { MOST = 8192 };
    PyObject *table = NULL;
    size_t count = 0;
    swx_range *ranges = swx_malloc(MOST * sizeof(*ranges));
    PyObject *expression = PyObject_CallMethod(re, "compile", "s", source);
    if (!ranges) {
        PyErr_NoMemory();
    } else if (expression && add_runs(expression, 0, 0x3FFFF, ranges, &count, MOST) == 0 &&
               add_runs(expression, 0xE0000, 0xEFFFF, ranges, &count, MOST) == 0) {
        table = PyBytes_FromStringAndSize((const char *)ranges, (Py_ssize_t)(count * sizeof(*ranges)));
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "more character ranges than there should be");
    }
    Py_XDECREF(expression);
    swx_free(ranges);
    return table;
}

/* The pair (digits, words), made at the first use and kept in the module. */
static PyObject *get_tables(PyObject *module)
{
    PyObject *re = NULL, *digits = NULL, *words = NULL;
    PyObject *tables = PyObject_GetAttrString(module, TABLES_NAME);
    if (!tables || tables != Py_None) {
        return tables;
    }
    Py_DECREF(tables);
    tables = NULL;
    re = PyImport_ImportModule("re");
    digits = re ? make_table(re, "\\d+") : NULL;
    words = digits ? make_table(re, "\\w+") : NULL;
    tables = words ? PyTuple_Pack(2, digits, words) : NULL;
    if (tables && PyObject_SetAttrString(module, TABLES_NAME, tables) < 0) {
        Py_CLEAR(tables);
    }
    Py_XDECREF(words);
    Py_XDECREF(digits);
    Py_XDECREF(re);
    return tables;
}

static int read_table(PyObject *pair, Py_ssize_t index, const swx_range **ranges, size_t *count)
{
    char *bytes;
    Py_ssize_t size;
    PyObject *table = PyTuple_GetItem(pair, index);
    if (!table || PyBytes_AsStringAndSize(table, &bytes, &size) < 0) {
        return -1;
    }
    *ranges = (const swx_range *)(const void *)bytes; /* a bytes object's contents are aligned for this */
    *count = (size_t)size / sizeof(swx_range);
    return 0;
}

/* ---- errors ---- */

/* Number of characters in a prefix of UTF-8. */
static size_t characters(const uint8_t *bytes, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        count += (bytes[i] & 0xC0) != 0x80;
    }
    return count;
}

/* Raises UnsupportedPattern or ValueError for pattern number `index` of the tuple. */
static void raise_for(PyObject *module, PyObject *patterns, size_t index, swx_status status, const char *text, size_t position)
{
    PyObject *type = status == SWX_EINVAL ? Py_NewRef(PyExc_ValueError) : PyObject_GetAttrString(module, ERROR_NAME);
    PyObject *pattern = PyTuple_GetItem(patterns, (Py_ssize_t)index);
    const char *cause = status == SWX_EINVAL   ? "is not a valid regular expression"
                        : status == SWX_ELIMIT ? "is too large to be searched for"
                                               : "cannot be searched for while output comes";
    PyObject *message = NULL, *error = NULL, *number = NULL;
    if (type && pattern) {
        message = PyUnicode_FromFormat("pattern %zu, %.1000R, %s: %s (at position %zu)", index, pattern, cause, text, position);
    }
    error = message ? PyObject_CallFunctionObjArgs(type, message, NULL) : NULL;
    number = error ? PyLong_FromSize_t(index) : NULL;
    if (number && PyObject_SetAttrString(error, "index", number) == 0) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(number);
    Py_XDECREF(error);
    Py_XDECREF(message);
    Py_XDECREF(type);
}

/* ---- construction ---- */

/* The patterns as UTF-8, borrowed from the tuple's strings; free with swx_free. */
static swx_pattern *read_patterns(PyObject *module, PyObject *patterns, size_t count)
{
    swx_pattern *read = swx_malloc(count * sizeof(*read));
    if (!read) {
        PyErr_NoMemory();
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        PyObject *pattern = PyTuple_GetItem(patterns, (Py_ssize_t)i);
        Py_ssize_t size = 0;
        const char *text = NULL;
        if (pattern && !PyUnicode_Check(pattern)) {
            PyErr_SetString(PyExc_TypeError, "a pattern is a str");
        } else if (pattern) {
            text = PyUnicode_AsUTF8AndSize(pattern, &size);
            if (!text && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
                PyErr_Clear();
                raise_for(module, patterns, i, SWX_EUNSUPPORTED, "a lone surrogate, which no output has", 0);
            }
        }
        if (!text) {
            swx_free(read);
            return NULL;
        }
        read[i] = (swx_pattern){ (const uint8_t *)text, (size_t)size };
    }
    return read;
}

/* Compiles without tables first: most patterns need none, and making them takes some ten milliseconds. */
static swx_status compile(PyObject *module, const swx_pattern *patterns, size_t count, swx_match **match, size_t *bad,
                          swx_error *err)
{
    swx_match_tables tables;
    PyObject *made = PyObject_GetAttrString(module, TABLES_NAME);
    swx_status status = SWX_EUNSUPPORTED;
    if (made == Py_None) {
        status = swx_match_new(match, patterns, count, NULL, bad, err);
    }
    Py_XDECREF(made);
    if (!made || status != SWX_EUNSUPPORTED) {
        return made ? status : SWX_ENOMEM;
    }
    made = get_tables(module);
    if (!made || read_table(made, 0, &tables.digit, &tables.digits) < 0 || read_table(made, 1, &tables.word, &tables.words) < 0) {
        Py_XDECREF(made);
        return SWX_ENOMEM;
    }
    status = swx_match_new(match, patterns, count, &tables, bad, err);
    Py_DECREF(made);
    return status;
}

static swx_match *new_match(PyObject *module, PyObject *patterns)
{
    swx_match *match = NULL;
    swx_error err = { 0 };
    size_t bad = 0, count = (size_t)PyTuple_Size(patterns);
    if (count > SWX_MATCH_MAX_PATTERNS) {
        PyErr_Format(PyExc_ValueError, "more than %u patterns", (unsigned)SWX_MATCH_MAX_PATTERNS);
        return NULL;
    }
    swx_pattern *read = read_patterns(module, patterns, count);
    if (!read) {
        return NULL;
    }
    swx_status status = compile(module, read, count, &match, &bad, &err);
    if (status == SWX_ENOMEM && !PyErr_Occurred()) {
        PyErr_NoMemory();
    } else if (status != SWX_OK && status != SWX_ENOMEM) {
        size_t position = characters(read[bad].bytes, err.position);
        raise_for(module, patterns, bad, status, err.text, position);
    }
    swx_free(read);
    return match;
}

static PyObject *matcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "patterns", NULL };
    PyObject *module = PyType_GetModule(type), *sequence, *patterns = NULL;
    Matcher *self = NULL;
    if (!module || !PyArg_ParseTupleAndKeywords(args, kwargs, "O:Matcher", names, &sequence)) {
        return NULL;
    }
    if (PyUnicode_Check(sequence)) {
        PyErr_SetString(PyExc_TypeError, "patterns is a sequence of str, not a str");
        return NULL;
    }
    patterns = PySequence_Tuple(sequence);
    swx_match *match = patterns ? new_match(module, patterns) : NULL;
    if (match) {
        allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        self = (Matcher *)allocate(type, 0);
        if (self) {
            self->match = match;
            atomic_init(&self->busy, false);
        } else {
            swx_match_free(match);
        }
    }
    Py_XDECREF(patterns);
    return (PyObject *)self;
}

static void matcher_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    swx_match_free(((Matcher *)object)->match);
    release(object);
    Py_DECREF(type);
}

/* ---- use ---- */

static int lock(Matcher *self)
{
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError, "the matcher is in use");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(feed_doc,
"feed($self, data, /)\n--\n\n"
"Reads bytes up to the end of a hit: (index, start, end), or None when there is none yet.\n\n"
"start and end are offsets in the stream since the last reset. After a hit feed data[consumed:] to go on; the search\n"
"starts anew at the end of the hit.");

static PyObject *matcher_feed(PyObject *object, PyObject *data)
{
    Matcher *self = (Matcher *)object;
    Py_buffer view;
    swx_status status;
    swx_hit hit = { 0 };
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (lock(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    const uint8_t *bytes = view.len ? view.buf : (const uint8_t *)"";
    if (view.len < LONG_FEED) {
        status = swx_match_feed(self->match, bytes, (size_t)view.len, &self->consumed, &hit);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = swx_match_feed(self->match, bytes, (size_t)view.len, &self->consumed, &hit);
        Py_END_ALLOW_THREADS
    }
    atomic_store(&self->busy, false);
    PyBuffer_Release(&view);
    if (status == SWX_ENOMEM) {
        return PyErr_NoMemory();
    }
    if (status == SWX_ELIMIT) {
        PyErr_SetString(PyExc_RuntimeError, "the patterns take too long on this text");
        return NULL;
    }
    if (status == SWX_MORE) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("nKK", (Py_ssize_t)hit.index, (unsigned long long)hit.start, (unsigned long long)hit.end);
}

PyDoc_STRVAR(reset_doc, "reset($self, /)\n--\n\nA new stream: offset 0, nothing read.");

static PyObject *matcher_reset(PyObject *object, PyObject *ignored)
{
    Matcher *self = (Matcher *)object;
    (void)ignored;
    if (lock(self) < 0) {
        return NULL;
    }
    swx_match_reset(self->match);
    atomic_store(&self->busy, false);
    Py_RETURN_NONE;
}

static PyObject *matcher_consumed(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((Matcher *)object)->consumed);
}

static PyObject *matcher_matches_empty(PyObject *object, void *closure)
{
    const swx_match *match = ((Matcher *)object)->match;
    size_t count = swx_match_count(match);
    PyObject *flags = PyList_New((Py_ssize_t)count);
    (void)closure;
    for (size_t i = 0; flags && i < count; i++) {
        if (PyList_SetItem(flags, (Py_ssize_t)i, PyBool_FromLong(swx_match_matches_empty(match, i))) < 0) {
            Py_CLEAR(flags);
        }
    }
    return flags;
}

static PyMethodDef METHODS[] = {
    { "feed", matcher_feed, METH_O, feed_doc },
    { "reset", matcher_reset, METH_NOARGS, reset_doc },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef PROPERTIES[] = {
    { "consumed", matcher_consumed, NULL, "How many bytes of the last data were read.", NULL },
    { "matches_empty", matcher_matches_empty, NULL, "For each pattern whether it matches the empty text.", NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

PyDoc_STRVAR(matcher_doc,
"Matcher(patterns)\n--\n\n"
"Which of several regular expressions (Python's syntax, DOTALL) completes first in a stream of bytes.\n\n"
"Raises ValueError for an invalid pattern, UnsupportedPattern (a ValueError) for one that is not regular; both name the\n"
"pattern and have its number as `index`. A matcher serves one stream at a time; used by two at once it raises\n"
"RuntimeError. The semantics are in swx_match.h.");

static PyType_Slot SLOTS[] = {
    { Py_tp_doc, (void *)matcher_doc },
    { Py_tp_new, (void *)matcher_new },
    { Py_tp_dealloc, (void *)matcher_dealloc },
    { Py_tp_methods, METHODS },
    { Py_tp_getset, PROPERTIES },
    { 0, NULL },
};

static PyType_Spec SPEC = {
    .name = "swerex_c._core." TYPE_NAME,
    .basicsize = sizeof(Matcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SLOTS,
};

int swx_py_match_init(PyObject *module)
{
    int result = -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &SPEC, NULL);
    PyObject *error = PyErr_NewExceptionWithDoc("swerex_c._core." ERROR_NAME,
                                                "A pattern that is not regular, or not exact in a stream, or too large.",
                                                PyExc_ValueError, NULL);
    if (type && error && PyModule_AddObjectRef(module, TYPE_NAME, type) == 0 &&
        PyModule_AddObjectRef(module, ERROR_NAME, error) == 0 && PyModule_AddObjectRef(module, TABLES_NAME, Py_None) == 0) {
        result = 0;
    }
    Py_XDECREF(error);
    Py_XDECREF(type);
    return result;
}

/* The type is known by its destructor, not by its name in the module, which anyone may bind to something else. */
swx_match *swx_py_match_take(PyObject *object)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) != (void *)matcher_dealloc) {
        PyErr_SetString(PyExc_TypeError, "a Matcher is needed");
        return NULL;
    }
    Matcher *self = (Matcher *)object;
    return lock(self) < 0 ? NULL : self->match;
}

void swx_py_match_give_back(PyObject *object)
{
    atomic_store(&((Matcher *)object)->busy, false);
}

/*
 * The hot path as C (floor F2): what hot_path.py takes in place of repeats.py and sweep.py where a compiler was there to build it.
 *
 * Repeats and read_ready() mean the same as theirs, which tests hold; the docstrings there tell what. The gain is that a token's read
 * makes no object but its stamp. What is no repeat goes to Python as it came: nothing is parsed here, nothing waits here, and so the
 * interpreter's lock is kept throughout.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stddef.h>
#include <structmember.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define READ_BYTES 16384              /* as in sweep.py */
#define NS_PER_S 1000000000LL
#define MAX_PLAUSIBLE_LAG_NS NS_PER_S /* as in stamps.py */
#define MAX_SIZE_DIGITS 3             /* of a chunk that is looked at here, as in chunked.py */
#define EVENTS_AT_ONCE 256            /* as in sweep.py */

typedef struct {
    PyObject_HEAD
    PyObject *stamps_ns;
    PyObject *append;
    PyObject *prefix; /* NULL: nothing is a repeat */
    PyObject *suffix;
    long long bytes_left;
    long long worst_lag_ns;
} Repeats;

static PyObject *
repeats_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stamps_ns", "max_bytes", NULL};
    PyObject *stamps_ns;
    long long max_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL:Repeats", names, &stamps_ns, &max_bytes)) {
        return NULL;
    }
    PyObject *append = PyObject_GetAttrString(stamps_ns, "append");
    if (append == NULL) {
        return NULL;
    }
    Repeats *self = (Repeats *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_DECREF(append);
        return NULL;
    }
    self->append = append;
    self->stamps_ns = Py_NewRef(stamps_ns);
    self->prefix = self->suffix = NULL;
    self->bytes_left = max_bytes;
    self->worst_lag_ns = -1;
    return (PyObject *)self;
}

static void
repeats_dealloc(Repeats *self)
{
    Py_XDECREF(self->stamps_ns);
    Py_XDECREF(self->append);
    Py_XDECREF(self->prefix);
    Py_XDECREF(self->suffix);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
repeats_expect(Repeats *self, PyObject *template)
{
    PyObject *prefix = NULL, *suffix = NULL;
    if (template != Py_None) {
        if (!PyTuple_Check(template) || PyTuple_GET_SIZE(template) != 2) {
            PyErr_SetString(PyExc_TypeError, "a template is what is ahead of a text and what is behind it");
            return NULL;
        }
        prefix = PyTuple_GET_ITEM(template, 0);
        suffix = PyTuple_GET_ITEM(template, 1);
        if (!PyBytes_Check(prefix) || !PyBytes_Check(suffix)) {
            PyErr_SetString(PyExc_TypeError, "a template is made of bytes");
            return NULL;
        }
    }
    Py_XINCREF(prefix);
    Py_XINCREF(suffix);
    Py_XSETREF(self->prefix, prefix);
    Py_XSETREF(self->suffix, suffix);
    Py_RETURN_NONE;
}

/* Writes the size line of the chunk that is size bytes long with all its framing; returns the line's length, 0 where there is none. */
static Py_ssize_t
write_size_line(Py_ssize_t size, char *line)
{
    for (Py_ssize_t num_digits = 1, limit = 16; num_digits <= MAX_SIZE_DIGITS; num_digits++, limit *= 16) {
        Py_ssize_t length = size - num_digits - 4; /* two line ends */
        if (length < 1 || length < limit / 16) {
            return 0;
        }
        if (length < limit) {
            for (Py_ssize_t place = num_digits; place-- > 0; length /= 16) {
                line[place] = "0123456789abcdef"[length % 16];
            }
            memcpy(line + num_digits, "\r\n", 2);
            return num_digits + 2;
        }
    }
    return 0;
}

/* Tells whether a read is one whole chunk with the template's bytes around a plain text. */
static int
is_repeat(const Repeats *self, const char *data, Py_ssize_t size)
{
    char line[MAX_SIZE_DIGITS + 2];
    if (self->suffix == NULL || size > self->bytes_left) {
        return 0;
    }
    Py_ssize_t line_size = write_size_line(size, line);
    Py_ssize_t prefix_size = PyBytes_GET_SIZE(self->prefix), suffix_size = PyBytes_GET_SIZE(self->suffix);
    if (line_size == 0 || size <= line_size + prefix_size + suffix_size) {
        return 0;
    }
    const char *prefix = data + line_size, *text = prefix + prefix_size, *suffix = data + size - suffix_size;
    if (memcmp(data, line, line_size) != 0 || memcmp(prefix, PyBytes_AS_STRING(self->prefix), prefix_size) != 0 ||
        memcmp(suffix, PyBytes_AS_STRING(self->suffix), suffix_size) != 0) {
        return 0;
    }
    for (; text < suffix; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n' || *text == '\r') {
            return 0;
        }
    }
    return 1;
}

/* Takes a read if it is a repeat; returns 1 if so, 0 if not, -1 with an exception set. */
static int
take(Repeats *self, const char *data, Py_ssize_t size, long long stamp_ns, long long lag_ns)
{
    if (!is_repeat(self, data, size)) {
        return 0;
    }
    PyObject *stamp = PyLong_FromLongLong(stamp_ns);
    PyObject *none = stamp == NULL ? NULL : PyObject_CallOneArg(self->append, stamp);
    Py_XDECREF(stamp);
    if (none == NULL) {
        return -1;
    }
    Py_DECREF(none);
    self->bytes_left -= size;
    if (lag_ns > self->worst_lag_ns) {
        self->worst_lag_ns = lag_ns;
    }
    return 1;
}

static PyObject *
repeats_take(Repeats *self, PyObject *args)
{
    const char *data;
    Py_ssize_t size;
    long long stamp_ns, lag_ns;
    if (!PyArg_ParseTuple(args, "y#LL:take", &data, &size, &stamp_ns, &lag_ns)) {
        return NULL;
    }
    int was_taken = take(self, data, size, stamp_ns, lag_ns);
    return was_taken < 0 ? NULL : PyBool_FromLong(was_taken);
}

static PyMethodDef repeats_methods[] = {
    {"expect", (PyCFunction)repeats_expect, METH_O, PyDoc_STR("Take as repeats what has this template from now on.")},
    {"take", (PyCFunction)repeats_take, METH_VARARGS, PyDoc_STR("Take a read if it is a repeat.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef repeats_members[] = {
    {"stamps_ns", T_OBJECT_EX, offsetof(Repeats, stamps_ns), READONLY, NULL},
    {"bytes_left", T_LONGLONG, offsetof(Repeats, bytes_left), 0, NULL},
    {"worst_lag_ns", T_LONGLONG, offsetof(Repeats, worst_lag_ns), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject repeats_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "distbench.wire._hot_path.Repeats",
    .tp_doc = PyDoc_STR("Knows the repeats of one answer."),
    .tp_basicsize = sizeof(Repeats),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = repeats_new,
    .tp_dealloc = (destructor)repeats_dealloc,
    .tp_methods = repeats_methods,
    .tp_members = repeats_members,
};

static PyObject *repeats_name;

static long long
clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* Returns the kernel's stamp of a message, NULL where it bears none. */
static struct cmsghdr *
stamp_of(struct msghdr *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_TIMESTAMPNS &&
            part->cmsg_len == CMSG_LEN(sizeof(struct timespec))) {
            return part;
        }
    }
    return NULL;
}

/* Adds a read, or an event (data is None), to what Python is to look at; steals the reference to data. 0, or -1 with an exception set. */
static int
hand_over(PyObject *left, int fd, unsigned int events, PyObject *data, struct cmsghdr *stamp)
{
    if (data == NULL) {
        return -1;
    }
    PyObject *item = stamp == NULL
                          ? Py_BuildValue("iIN[]", fd, events, data)
                          : Py_BuildValue("iIN[(iiy#)]", fd, events, data, stamp->cmsg_level, stamp->cmsg_type,
                                          (const char *)CMSG_DATA(stamp), (Py_ssize_t)sizeof(struct timespec));
    if (item == NULL) {
        return -1;
    }
    int failed = PyList_Append(left, item);
    Py_DECREF(item);
    return failed;
}

/* Tells whether a read was a repeat of its stream's answer, and then counts it; -1 with an exception set. */
static int
take_for_stream(PyObject *stream, const char *data, Py_ssize_t size, struct cmsghdr *stamp, long long distance_ns)
{
    long long now_ns = clock_ns();
    struct timespec wall;
    memcpy(&wall, CMSG_DATA(stamp), sizeof wall);
    long long stamp_ns = wall.tv_sec * NS_PER_S + wall.tv_nsec + distance_ns;
    if (stamp_ns > now_ns || stamp_ns < now_ns - MAX_PLAUSIBLE_LAG_NS) {
        return 0;
    }
    PyObject *repeats = PyObject_GetAttr(stream, repeats_name);
    if (repeats == NULL) {
        return -1;
    }
    int was_taken = Py_IS_TYPE(repeats, &repeats_type) ? take((Repeats *)repeats, data, size, stamp_ns, now_ns - stamp_ns) : 0;
    Py_DECREF(repeats);
    return was_taken;
}

/* Takes one read off a stream; 0, or -1 with an exception set. */
static int
read_stream(PyObject *left, int fd, PyObject *stream, long long distance_ns)
{
    char data[READ_BYTES];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    struct iovec place = {.iov_base = data, .iov_len = sizeof data};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    Py_ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT);
    if (size < 0) {
        PyObject *error = PyObject_CallFunction(PyExc_OSError, "is", errno, strerror(errno));
        return hand_over(left, fd, EPOLLIN, error, NULL);
    }
    struct cmsghdr *stamp = stamp_of(&message);
    int was_taken = stamp == NULL ? 0 : take_for_stream(stream, data, size, stamp, distance_ns);
    if (was_taken != 0) {
        return was_taken < 0 ? -1 : 0;
    }
    return hand_over(left, fd, EPOLLIN, PyBytes_FromStringAndSize(data, size), stamp);
}

/* Reads the socket of one event, or hands the event over; 0, or -1 with an exception set. */
static int
look_at(PyObject *left, const struct epoll_event *event, PyObject *streams, long long distance_ns)
{
    int fd = event->data.fd; /* as select.epoll fills it */
    PyObject *stream = NULL;
    if (event->events == EPOLLIN) {
        PyObject *key = PyLong_FromLong(fd);
        if (key == NULL) {
            return -1;
        }
        stream = PyDict_GetItemWithError(streams, key);
        Py_DECREF(key);
    }
    if (stream == NULL) {
        return PyErr_Occurred() ? -1 : hand_over(left, fd, event->events, Py_NewRef(Py_None), NULL);
    }
    Py_INCREF(stream);
    int failed = read_stream(left, fd, stream, distance_ns);
    Py_DECREF(stream);
    return failed;
}

static PyObject *
read_ready(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *epoll, *streams;
    long long distance_ns;
    if (!PyArg_ParseTuple(args, "OO!L:read_ready", &epoll, &PyDict_Type, &streams, &distance_ns)) {
        return NULL;
    }
    int epoll_fd = PyObject_AsFileDescriptor(epoll);
    PyObject *left = epoll_fd < 0 ? NULL : PyList_New(0);
    if (left == NULL) {
        return NULL;
    }
    struct epoll_event events[EVENTS_AT_ONCE];
    /* While these were read, others may have become ready. But what Python has not looked at yet must not be overtaken. */
    for (int budget = EVENTS_AT_ONCE; budget > 0 && PyList_GET_SIZE(left) == 0;) {
        int num_ready = epoll_wait(epoll_fd, events, budget, 0);
        if (num_ready < 0 && errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            goto fail;
        }
        if (num_ready <= 0) {
            break;
        }
        budget -= num_ready;
        for (int index = 0; index < num_ready; index++) {
            if (look_at(left, &events[index], streams, distance_ns) < 0) {
                goto fail;
            }
        }
    }
    return left;
fail:
    Py_DECREF(left);
    return NULL;
}

static PyMethodDef functions[] = {
    {"read_ready", read_ready, METH_VARARGS, PyDoc_STR("Take one read off each stream that is ready.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "distbench.wire._hot_path",
    .m_doc = PyDoc_STR("The hot path as C."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__hot_path(void)
{
    repeats_name = PyUnicode_InternFromString("repeats");
    if (repeats_name == NULL || PyType_Ready(&repeats_type) < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddObjectRef(module, "Repeats", (PyObject *)&repeats_type) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}

/* Preloaded into a daemon: logs what it writes to its databases, or makes one of these writes fail.
 *
 * DISK_LOG=FILE    append a record for each write, sync, truncation, removal and renaming of a database file
 * DISK_FAULT=N:E   the N-th write or sync of a database file fails with errno E (once)
 *
 * A record: start and end (nanoseconds, CLOCK_MONOTONIC), kind, whether the file is opened with O_DSYNC, the lengths of
 * path and data, the offset, then path and data. bench/soak/disk_log.py reads it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 3, UNLINK = 4, RENAME = 5 };

struct record {
  uint64_t start, end, offset;
  uint32_t length;
  uint16_t path_length;
  uint8_t kind, durable;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static long fault_at = -1, seen = 0;
static int fault_errno = 0;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("DISK_LOG"), *fault = getenv("DISK_FAULT");
  if (path) log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fault && sscanf(fault, "%ld:%d", &fault_at, &fault_errno) != 2) abort();
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Whether a name is that of a database: LMDB's data file, or SQLite's file with its log or journal. */
static int is_database(const char *path) {
  const char *base = strrchr(path, '/');
  base = base ? base + 1 : path;
  return !strcmp(base, "data.mdb") || !strcmp(base, "data.mdb.making") || !strcmp(base, "recovery.db") || !strcmp(base, "recovery.db-wal") ||
         !strcmp(base, "recovery.db-journal");
}

static int path_of(int fd, char *path) {
  char link[64];
  int saved = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  errno = saved;
  if (n <= 0) return 0;
  path[n] = 0;
  return is_database(path);
}

static int fails(void) {
  if (fault_at < 0) return 0;
  pthread_mutex_lock(&lock);
  int hit = ++seen == fault_at;
  pthread_mutex_unlock(&lock);
  if (hit) errno = fault_errno;
  return hit;
}

static void put(const void *bytes, size_t n) {
  const char *at = bytes;
  while (n) {
    long done = syscall(SYS_write, log_fd, at, n);
    if (done <= 0) abort();
    at += done;
    n -= (size_t)done;
  }
}

static void note(int kind, const char *path, int fd, uint64_t start, uint64_t offset, const struct iovec *iov, int n,
                 size_t length) {
  if (log_fd < 0) return;
  int saved = errno, flags = fd < 0 ? 0 : fcntl(fd, F_GETFL);
  struct record r = {start, 0, offset, (uint32_t)length, (uint16_t)strlen(path), (uint8_t)kind,
                     (uint8_t)((flags & O_DSYNC) == O_DSYNC)};
  pthread_mutex_lock(&lock);
  r.end = now();
  put(&r, sizeof r);
  put(path, r.path_length);
  for (int i = 0; i < n && length; i++) {
    size_t part = iov[i].iov_len < length ? iov[i].iov_len : length;
    put(iov[i].iov_base, part);
    length -= part;
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

static ssize_t positioned(int fd, const struct iovec *iov, int n, off_t offset,
                          ssize_t (*call)(int, const struct iovec *, int, off_t)) {
  char path[PATH_MAX];
  if (!path_of(fd, path)) return call(fd, iov, n, offset);
  if (fails()) return -1;
  uint64_t start = now();
  uint64_t at = offset < 0 ? (uint64_t)lseek(fd, 0, SEEK_CUR) : (uint64_t)offset;
  ssize_t done = call(fd, iov, n, offset);
  if (done > 0) note(WRITE, path, fd, start, at, iov, n, (size_t)done);
  return done;
}

static ssize_t call_pwrite(int fd, const struct iovec *iov, int n, off_t offset) {
  REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
  (void)n;
  return real(fd, iov->iov_base, iov->iov_len, offset);
}
static ssize_t call_pwritev(int fd, const struct iovec *iov, int n, off_t offset) {
  REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
  return real(fd, iov, n, offset);
}
static ssize_t call_write(int fd, const struct iovec *iov, int n, off_t offset) {
  REAL(ssize_t, write, int, const void *, size_t);
  (void)n, (void)offset;
  return real(fd, iov->iov_base, iov->iov_len);
}
static ssize_t call_writev(int fd, const struct iovec *iov, int n, off_t offset) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  (void)offset;
  return real(fd, iov, n);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
  struct iovec one = {(void *)data, length};
  return positioned(fd, &one, 1, offset, call_pwrite);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return pwrite(fd, data, length, offset); }
ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t offset) {
  return positioned(fd, iov, n, offset, call_pwritev);
}
ssize_t pwritev64(int fd, const struct iovec *iov, int n, off_t offset) { return pwritev(fd, iov, n, offset); }
ssize_t write(int fd, const void *data, size_t length) {
  struct iovec one = {(void *)data, length};
  return positioned(fd, &one, 1, -1, call_write);
}
ssize_t writev(int fd, const struct iovec *iov, int n) { return positioned(fd, iov, n, -1, call_writev); }

static int synced(int fd, int (*call)(int)) {
  char path[PATH_MAX];
  if (!path_of(fd, path)) return call(fd);
  if (fails()) return -1;
  uint64_t start = now();
  int code = call(fd);
  if (!code) note(SYNC, path, fd, start, 0, NULL, 0, 0);
  return code;
}

int fdatasync(int fd) {
  REAL(int, fdatasync, int);
  return synced(fd, real);
}
int fsync(int fd) {
  REAL(int, fsync, int);
  return synced(fd, real);
}

int ftruncate(int fd, off_t length) {
  REAL(int, ftruncate, int, off_t);
  char path[PATH_MAX];
  uint64_t start = now();
  int code = real(fd, length);
  if (!code && path_of(fd, path)) note(TRUNCATE, path, fd, start, (uint64_t)length, NULL, 0, 0);
  return code;
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

int unlink(const char *path) {
  REAL(int, unlink, const char *);
  uint64_t start = now();
  int code = real(path);
  if (!code && is_database(path)) note(UNLINK, path, -1, start, 0, NULL, 0, 0);
  return code;
}

int rename(const char *from, const char *to) {
  REAL(int, rename, const char *, const char *);
  struct iovec name = {(void *)to, strlen(to)};
  uint64_t start = now();
  int code = real(from, to);
  if (!code && is_database(from)) note(RENAME, from, -1, start, 0, &name, 1, name.iov_len);
  return code;
}

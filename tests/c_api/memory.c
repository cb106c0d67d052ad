// Calls each function of the C interface many times: the memory in use stays level.  mpirun -n N c_memory HEADER
// C_API_CALLS=10000: calls of each function.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

// A new communicator: Open MPI's own tables grow for the first few hundred.
enum { kBytesPerCall = 20, kBytesPerCommunicator = 2000 };

MPI_Comm host;
int rank, ranks;

void fail(int line, const char* what) {
  fprintf(stderr, "c_memory: rank %d, line %d: %s; last error: %s\n", rank, line, what, dtensor_last_error());
  exit(1);
}

static long bytes_in_use(void) {
  const struct mallinfo2 now = mallinfo2();
  return (long)(now.uordblks + now.hblkhd);
}

typedef void (*Run)(const function* f, objects* o, long calls);

// A leak shows in each of three rounds, growth of a table in one of them.
static void expect_level(const char* name, Run run, const function* f, objects* o, long calls, long limit) {
  char text[256];
  long growth = 0;
  run(f, o, calls / 5);
  for (int round = 0; round < 3; ++round) {
    const long before = bytes_in_use();
    run(f, o, calls);
    growth = bytes_in_use() - before;
    int largest = growth > limit * calls, own = largest;
    MPI_Allreduce(&own, &largest, 1, MPI_INT, MPI_MAX, host);
    if (!largest) return;
  }
  snprintf(text, sizeof text, "%s: %ld calls leave %ld bytes", name, calls, growth);
  fail(__LINE__, text);
}

static void call(const function* f, objects* o, long times) {
  void* handles[kMaxHandles];
  for (long i = 0; i < times; ++i) {
    if (f->renew != NULL) f->renew(o);
    valid_handles(f, o, handles);
    if (f->call(o, handles) != DTENSOR_OK) fail(__LINE__, f->name);
  }
}

// Communicators of the program, each with a mesh and objects on it, all freed.
static void use_communicators(const function* f, objects* unused, long times) {
  (void)f, (void)unused;
  for (long i = 0; i < times; ++i) {
    MPI_Comm own = MPI_COMM_NULL;
    objects o;
    MPI_Comm_dup(host, &own);
    make_objects(&o, own);
    free_objects(&o);
    MPI_Comm_free(&own);
  }
}

// A field with a list of unequal parts: a new one each time in long runs, which fill the caches of layouts.
static void use_parts(const function* f, objects* o, long times) {
  static int64_t lists;
  (void)f;
  for (long i = 0; i < times; ++i) {
    char placements[512] = "[RS(0,";
    double values[1] = {0};
    const int64_t number = 1 + lists++ % (times < 2000 ? 4 : INT64_MAX), sizes[2] = {number + rank, 0};
    const dtensor_host_array array = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
    dtensor_tensor *tensor = NULL, *copy = NULL;
    for (int r = 0; r < ranks; ++r) snprintf(placements + strlen(placements), 24, " %lld", (long long)number + r);
    strcat(placements, ")]");
    ok(dtensor_tensor_from_host(o->handle[kMesh], &array, placements, &tensor));
    ok(dtensor_tensor_redistribute(tensor, "[R]", &copy));
    dtensor_tensor_free(tensor);
    dtensor_tensor_free(copy);
  }
}

int main(int argc, char** argv) {
  int provided = 0;
  const char* given = getenv("C_API_CALLS");
  const long calls = given == NULL ? 100 : atol(given);
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &host);
  MPI_Comm_rank(host, &rank);
  MPI_Comm_size(host, &ranks);
  check_table(argv[1]);
  objects o;
  make_objects(&o, host);
  for (int i = 0; i < function_count; ++i) {
    const char* name = functions[i].name;
    if (strcmp(name + strlen(name) - 5, "_free") == 0) continue;  // called by the others
    expect_level(name, call, &functions[i], &o, calls, kBytesPerCall);
  }
  expect_level("dtensor_tensor_from_host of lists of parts", use_parts, NULL, &o, calls, kBytesPerCall);
  free_objects(&o);
  expect_level("new communicators", use_communicators, NULL, NULL, calls / 4, kBytesPerCommunicator);
  MPI_Comm_free(&host);
  MPI_Finalize();
  return 0;
}

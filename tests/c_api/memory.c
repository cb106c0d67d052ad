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

static void expect_level(const char* name, long before, long calls, long limit) {
  char text[256];
  const long growth = bytes_in_use() - before;
  snprintf(text, sizeof text, "%s: %ld calls leave %ld bytes", name, calls, growth);
  if (growth > limit * calls) fail(__LINE__, text);
}

static void call(const function* f, objects* o, long times) {
  void* handles[2];
  for (long i = 0; i < times; ++i) {
    if (f->renew != NULL) f->renew(o);
    valid_handles(f, o, handles);
    if (f->call(o, handles) != DTENSOR_OK) fail(__LINE__, f->name);
  }
}

static void check_function(const function* f, objects* o, long calls) {
  const size_t length = strlen(f->name);
  if (strcmp(f->name + length - 5, "_free") == 0) return;  // called by the others
  call(f, o, calls / 5);
  const long before = bytes_in_use();
  call(f, o, calls);
  expect_level(f->name, before, calls, kBytesPerCall);
}

// A communicator of the program, a mesh and a tensor on it, all freed.
static void use_new_communicator(void) {
  MPI_Comm own = MPI_COMM_NULL;
  objects o;
  MPI_Comm_dup(host, &own);
  make_objects(&o, own);
  free_objects(&o);
  MPI_Comm_free(&own);
}

static void check_communicators(long calls) {
  for (long i = 0; i < calls / 5; ++i) use_new_communicator();
  const long before = bytes_in_use();
  for (long i = 0; i < calls; ++i) use_new_communicator();
  expect_level("dtensor_mesh_from_mpi of new communicators", before, calls, kBytesPerCommunicator);
}

// A field with a list of unequal parts. Each new list is kept for the life of the process, so the lists alternate.
static void use_parts(objects* o, int64_t number) {
  char placements[512] = "[RS(0,";
  double values[1] = {0};
  const int64_t sizes[2] = {number + rank, 0};
  const dtensor_host_array array = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  dtensor_tensor *tensor = NULL, *copy = NULL;
  for (int r = 0; r < ranks; ++r) snprintf(placements + strlen(placements), 24, " %lld", (long long)number + r);
  strcat(placements, ")]");
  ok(dtensor_tensor_from_host(o->handle[kMesh], &array, placements, &tensor));
  ok(dtensor_tensor_redistribute(tensor, "[R]", &copy));
  dtensor_tensor_free(tensor);
  dtensor_tensor_free(copy);
}

static void check_parts(objects* o, long calls) {
  for (long i = 0; i < calls / 5; ++i) use_parts(o, 1 + i % 4);
  const long before = bytes_in_use();
  for (long i = 0; i < calls; ++i) use_parts(o, 1 + i % 4);
  expect_level("dtensor_tensor_from_host of lists of parts", before, calls, kBytesPerCall);
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
  for (int i = 0; i < function_count; ++i) check_function(&functions[i], &o, calls);
  check_parts(&o, calls);
  free_objects(&o);
  check_communicators(calls / 4);
  MPI_Comm_free(&host);
  MPI_Finalize();
  return 0;
}

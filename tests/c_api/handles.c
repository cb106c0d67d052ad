// Calls each function of the C interface with null, freed, foreign and misplaced handles, on all ranks and on one: no
// crash, no hang, and no call that is matched with another one.  mpirun -n N c_handles HEADER
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

enum defect { kNull, kFreed, kForeign, kUninitialized, kMisplaced, kDefects };

MPI_Comm host;
int rank, ranks;
static int trials;

void fail(int line, const char* what) {
  fprintf(stderr, "c_handles: rank %d, line %d: %s; last error: %s\n", rank, line, what, dtensor_last_error());
  exit(1);
}

static void expect_in(const function* f, int defect, int line, int holds, const char* what) {
  char text[512];
  snprintf(text, sizeof text, "%s, defect %d: %s", f->name, defect, what);
  if (!holds) fail(line, text);
}
#define check(holds) expect_in(f, (int)defect, __LINE__, (holds), #holds)

static int frees(const function* f) { return strcmp(f->name + strlen(f->name) - 5, "_free") == 0; }
static int may_be_null(const function* f, int position) { return (f->optional >> position & 1) != 0; }

static void* wrong_handle(const objects* o, enum kind kind, enum defect defect) {
  static double memory[8];
  if (defect == kNull) return NULL;
  if (defect == kForeign) return memory;
  if (defect == kUninitialized) return (void*)(uintptr_t)0xa5a5a5a5a5a5a5a5;
  if (defect == kMisplaced) return o->handle[(kind + 1) % kKinds];
  dtensor_tensor* freed = NULL;
  ok(dtensor_module_parameter(o->handle[kModule], 0, &freed));
  dtensor_tensor_free(freed);
  return freed;
}

// The same number on all ranks.
static int largest(int own) {
  int all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MAX, host);
  return all;
}

// A collective call whose values tell whether it was matched with another one.
static dtensor_status probe(objects* o) {
  double values[12 * 16] = {0};
  const int64_t sizes[2] = {4 * ranks, 3};
  const dtensor_host_array all = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  const dtensor_status status = dtensor_tensor_copy_full(o->handle[kTensor], &all);
  for (int i = 0; i < 12 * ranks && status == DTENSOR_OK; ++i) expect(values[i] == i % 12 + 1);
  return status;
}

// All ranks pass the handle: one error, and the ranks go on.
static void on_all_ranks(const function* f, objects* o, int position, enum defect defect) {
  void* handles[kMaxHandles];
  valid_handles(f, o, handles);
  handles[position] = wrong_handle(o, f->kinds[position], defect);
  const dtensor_status status = f->call(o, handles);
  check(status == (frees(f) ? DTENSOR_OK : DTENSOR_INVALID_ARGUMENT));
  if (!frees(f)) check(strncmp(dtensor_last_error(), f->name, strlen(f->name)) == 0);
  check(probe(o) == DTENSOR_OK);
}

// The last rank passes the handle, the others a valid one. Either all ranks get one error and go on, or they get errors
// in this call and the next one.
static void on_one_rank(const function* f, objects* o, int position, enum defect defect) {
  void* handles[kMaxHandles];
  const int wrong = rank == ranks - 1;
  if (f->renew != NULL) f->renew(o);
  valid_handles(f, o, handles);
  void* const handle = wrong_handle(o, f->kinds[position], defect);
  if (wrong) handles[position] = handle;
  const dtensor_status status = f->call(o, handles);
  const dtensor_status next = probe(o);
  const int agreed = (f->reported >> position & 1) != 0, alone = !f->collective;
  check(alone || !wrong || status == DTENSOR_INVALID_ARGUMENT);
  if (alone) check(wrong || status == DTENSOR_OK);
  if (agreed) check(status == DTENSOR_INVALID_ARGUMENT);
  if (!alone && !agreed) check(wrong || status == DTENSOR_OK || status == DTENSOR_COMMUNICATION);
  check(next == (alone || agreed ? DTENSOR_OK : DTENSOR_COMMUNICATION));
  if (next != DTENSOR_OK) check(strstr(dtensor_last_error(), f->name) != NULL);
}

// Fresh objects on the same communicator: after a failure a new mesh communicates again.
static void renew(objects* o) {
  free_objects(o);
  make_objects(o, o->comm);
}

static void check_function(const function* f, objects* o) {
  const enum defect defect = kDefects;
  void* handles[kMaxHandles] = {NULL};
  valid_handles(f, o, handles);
  if (!frees(f)) check(f->call(o, handles) == DTENSOR_OK);
  renew(o);
  for (int position = 0; position < f->count; ++position) {
    for (int d = 0; d < kDefects; ++d) {
      if (d == kNull && may_be_null(f, position)) continue;
      on_all_ranks(f, o, position, (enum defect)d);
    }
    enum defect one = (enum defect)(trials++ % kDefects);
    if (one == kNull && may_be_null(f, position)) one = kFreed;
    if (ranks > 1 && !frees(f)) on_one_rank(f, o, position, one);
    renew(o);
  }
}

// The ranks that wait get the error although the rank that failed makes no other call.
static void check_waiting_ranks(objects* o) {
  const function* f = &functions[0];
  const enum defect defect = kNull;
  if (ranks == 1) return;
  const int wrong = rank == ranks - 1;
  dtensor_tensor* made = NULL;
  const dtensor_status status = dtensor_tensor_redistribute(wrong ? NULL : o->handle[kTensor], "[R]", &made);
  check(status == (wrong ? DTENSOR_INVALID_ARGUMENT : DTENSOR_COMMUNICATION));
  check(strstr(dtensor_last_error(), "dtensor_tensor_redistribute: expected a tensor, got a null pointer") != NULL);
  check(largest(1) == 1);
  renew(o);
}

// Ranks that pass different communicators get an error after the timeout.
static void check_different_communicators(void) {
  const function* f = &functions[0];
  const enum defect defect = kNull;
  if (ranks == 1) return;
  MPI_Comm one = MPI_COMM_NULL, other = MPI_COMM_NULL;
  const int64_t shape[1] = {ranks};
  dtensor_mesh* mesh = NULL;
  MPI_Comm_dup(host, &one);
  MPI_Comm_dup(host, &other);
  ok(dtensor_set_timeout(0.5));
  const dtensor_status status = dtensor_mesh_from_mpi(MPI_Comm_c2f(rank == 0 ? one : other), 1, shape, NULL, &mesh);
  check(status == DTENSOR_COMMUNICATION && strstr(dtensor_last_error(), "different communicators") != NULL);
  check(dtensor_set_timeout(-1) == DTENSOR_INVALID_ARGUMENT);
  ok(dtensor_set_timeout(300));
}

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &host);
  MPI_Comm_rank(host, &rank);
  MPI_Comm_size(host, &ranks);
  check_table(argv[1]);
  objects o;
  make_objects(&o, host);
  for (int i = 0; i < function_count; ++i) check_function(&functions[i], &o);
  check_waiting_ranks(&o);
  free_objects(&o);
  check_different_communicators();
  MPI_Comm_free(&host);
  MPI_Finalize();
  return 0;
}

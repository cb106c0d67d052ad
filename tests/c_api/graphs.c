// A layer of a graph network whose nodes are split over the ranks.
#include <math.h>
#include <stddef.h>

#include "run.h"

enum { kNodes = 13, kEdges = 40, kFeatures = 2 };

static const int kSource[] = {5, 1, 12}, kStep[] = {7, 11, 3};  // of the three kinds of edges

static int source_of(int edge) { return (kSource[edge % 3] + kStep[edge % 3] * edge) % kNodes; }
static int target_of(int edge) { return (edge * edge + 2) % kNodes; }

static int owner_of(int node, int count) { return node / ((kNodes + count - 1) / count); }

// This rank's part: which nodes others need, and the rows of the ends of its edges.
typedef struct part {
  int first, owned, edges;
  int64_t send_counts[64], send_rows[64 * kNodes], source[kEdges], target[kEdges];
} part;

// Whether rank `to` has an edge from a node of another rank.
static int needs(int to, int node, int count) {
  for (int e = 0; e < kEdges; ++e) {
    if (source_of(e) == node && owner_of(target_of(e), count) == to) return owner_of(node, count) != to;
  }
  return 0;
}

static void make_part(part* p, int index, int count) {
  int last = 0, sent = 0, ghosts = 0, row[kNodes] = {0};
  chunk_of(kNodes, index, count, &p->first, &last);
  p->owned = last - p->first;
  p->edges = 0;
  for (int to = 0; to < count; ++to) {
    p->send_counts[to] = 0;
    for (int node = p->first; node < last; ++node) {
      if (!needs(to, node, count)) continue;
      p->send_rows[sent++] = node - p->first;
      ++p->send_counts[to];
    }
  }
  for (int node = 0; node < kNodes; ++node) {  // in the order of ranks
    if (owner_of(node, count) == index) row[node] = node - p->first;
    if (needs(index, node, count)) row[node] = p->owned + ghosts++;
  }
  for (int e = 0; e < kEdges; ++e) {
    if (owner_of(target_of(e), count) != index) continue;
    p->source[p->edges] = row[source_of(e)];
    p->target[p->edges++] = target_of(e) - p->first;
  }
}

static dtensor_graph* graph_of(dtensor_mesh* mesh, const part* p) {
  dtensor_graph* graph = NULL;
  ok(dtensor_graph_create(mesh, p->owned, p->send_counts, p->send_rows, p->edges, p->source, p->target, &graph));
  return graph;
}

static dtensor_tensor* features_of(dtensor_mesh* mesh, const part* p, double* values) {
  for (int i = 0; i < p->owned * kFeatures; ++i) values[i] = sin(1.0 + p->first * kFeatures + i);
  const int64_t sizes[2] = {p->owned, kFeatures};
  const dtensor_host_array array = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  dtensor_tensor* x = NULL;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &x));
  return x;
}

static void pass_messages(dtensor_mesh* mesh, int index, int count, const void* unused, numbers* result) {
  const int64_t widths[3] = {2 * kFeatures, 8, kFeatures};
  static part p;
  double values[kNodes * kFeatures];
  dtensor_module* net = NULL;
  dtensor_tensor *h = NULL, *from = NULL, *to = NULL, *messages = NULL, *y = NULL;
  (void)unused;
  make_part(&p, index, count);
  dtensor_graph* graph = graph_of(mesh, &p);
  dtensor_tensor* x = features_of(mesh, &p, values);
  ok(dtensor_tensor_set_requires_grad(x, 1));
  ok(dtensor_module_create(mesh, "Perceptron", 3, widths, "silu", DTENSOR_FLOAT64, 9, &net));
  ok(dtensor_graph_exchange(graph, x, &h));
  ok(dtensor_graph_gather_source(graph, h, &from));
  ok(dtensor_graph_gather_target(graph, h, &to));
  dtensor_tensor* ends = compute("cat", from, to);
  ok(dtensor_module_forward(net, ends, &messages));
  ok(dtensor_graph_scatter(graph, messages, &y));
  append(result, y);
  backward_of_squares(y);
  append_gradient(result, x);
  append_parameter_gradients(result, net);
  dtensor_tensor* all[] = {x, h, from, to, ends, messages, y};
  for (int i = 0; i < 7; ++i) dtensor_tensor_free(all[i]);
  dtensor_module_free(net);
  dtensor_graph_free(graph);
}

// reduce() adds the ghosts to their owners: each node as often as ranks have it.
static void check_reduce(dtensor_mesh* mesh) {
  static part p;
  static numbers before, after;
  double values[kNodes * kFeatures];
  dtensor_tensor *h = NULL, *sum = NULL;
  int64_t ghosts = 0, rows = 0;
  make_part(&p, rank, ranks);
  dtensor_graph* graph = graph_of(mesh, &p);
  dtensor_tensor* x = features_of(mesh, &p, values);
  before.count = after.count = 0;
  ok(dtensor_graph_exchange(graph, x, &h));
  ok(dtensor_graph_reduce(graph, h, &sum));
  ok(dtensor_graph_ghosts(graph, &ghosts));
  append(&before, x);
  append(&after, sum);
  for (int node = 0, needed = 0; node < kNodes; ++node, needed = 0) {
    for (int to = 0; to < ranks; ++to) needed += needs(to, node, ranks);
    rows += needs(rank, node, ranks);
    for (int i = node * kFeatures; i < (node + 1) * kFeatures; ++i) {
      expect(fabs(after.values[i] - (1 + needed) * before.values[i]) < 1e-12);
    }
  }
  expect(ghosts == rows);
  dtensor_tensor_free(sum);
  if (ranks > 1) refused(dtensor_graph_reduce(graph, x, &sum), "expected a tensor of");  // x has no ghosts
  dtensor_tensor_free(x);
  dtensor_tensor_free(h);
  dtensor_graph_free(graph);
}

static int same_row(const numbers* rows, int row, const numbers* nodes, int node) {
  const double *a = rows->values + row * kFeatures, *b = nodes->values + node * kFeatures;
  return a[0] == b[0] && a[1] == b[1];
}

// Rows of edges are those of their ends, and scatter adds them at the targets.
static void check_ends(dtensor_mesh* mesh) {
  static part p;
  static numbers nodes, from, to, sums;
  double values[kNodes * kFeatures];
  dtensor_tensor *h = NULL, *sources = NULL, *targets = NULL, *y = NULL;
  make_part(&p, rank, ranks);
  dtensor_graph* graph = graph_of(mesh, &p);
  dtensor_tensor* x = features_of(mesh, &p, values);
  ok(dtensor_graph_exchange(graph, x, &h));
  ok(dtensor_graph_gather_source(graph, h, &sources));
  ok(dtensor_graph_gather_target(graph, h, &targets));
  ok(dtensor_graph_scatter(graph, sources, &y));
  nodes.count = from.count = to.count = sums.count = 0;
  append(&nodes, x);
  append(&from, sources);
  append(&to, targets);
  append(&sums, y);
  for (int owner = 0, row = 0; owner < ranks; ++owner) {
    for (int e = 0; e < kEdges; ++e) {
      if (owner_of(target_of(e), ranks) != owner) continue;
      expect(same_row(&from, row, &nodes, source_of(e)) && same_row(&to, row, &nodes, target_of(e)));
      for (int i = 0; i < kFeatures; ++i) {
        sums.values[target_of(e) * kFeatures + i] -= from.values[row * kFeatures + i];
      }
      ++row;
    }
  }
  for (int i = 0; i < sums.count; ++i) expect(fabs(sums.values[i]) < 1e-12);
  dtensor_tensor* all[] = {x, h, sources, targets, y};
  for (int i = 0; i < 5; ++i) dtensor_tensor_free(all[i]);
  dtensor_graph_free(graph);
}

// A wrong list on one rank is one error on all ranks.
static void check_refusals(dtensor_mesh* mesh) {
  static part p;
  dtensor_graph* graph = NULL;
  const int wrong = rank == ranks - 1;
  make_part(&p, rank, ranks);
  p.edges = 1;
  p.source[0] = p.target[0] = 0;
  if (wrong) p.target[0] = p.owned;
  refused(dtensor_graph_create(mesh, p.owned, p.send_counts, p.send_rows, 1, p.source, p.target, &graph),
          "expected targets of edges in [0, ");
  p.target[0] = 0;
  if (wrong) p.source[0] = 99;
  refused(dtensor_graph_create(mesh, p.owned, p.send_counts, p.send_rows, 1, p.source, p.target, &graph),
          "expected sources of edges in [0, ");
  refused(dtensor_graph_create(mesh, wrong ? -1 : p.owned, p.send_counts, p.send_rows, 0, NULL, NULL, &graph),
          "expected numbers of nodes and edges in [0, ");
  if (wrong) p.send_counts[0] = -1;
  refused(dtensor_graph_create(mesh, p.owned, p.send_counts, p.send_rows, 0, NULL, NULL, &graph),
          "expected numbers of rows to send in [0, ");
}

void check_graphs(dtensor_mesh* mesh) {
  expect_as_one_process(mesh, pass_messages, NULL);
  check_reduce(mesh);
  check_ends(mesh);
  check_refusals(mesh);
}

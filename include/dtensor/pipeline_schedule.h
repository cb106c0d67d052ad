// Pipeline schedules as values: what each rank of a pipeline does in one step, and in which order. They are generated,
// read from text, completed with communication, proved, timed and drawn; nothing here communicates or sees a tensor, so
// every rank makes the same ones without asking.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/export.h"

namespace dtensor::pipeline {

// The model is cut into stages 0, 1, ..., the batch into microbatches 0, 1, ...
enum class ActionKind : std::uint8_t {
  forward,          // F: the stage's outputs for a microbatch (of the last stage: the loss)
  backward,         // B: the gradients of its inputs and weights
  backward_input,   // I: of its inputs only, which is what the stage before waits for
  backward_weight,  // W: of its weights, some time after I
  send_forward,     // SEND_F: the outputs, to the next stage
  recv_forward,     // RECV_F: the inputs, from the stage before
  send_backward,    // SEND_B: the gradients of the inputs, to the stage before
  recv_backward,    // RECV_B: the gradients of the outputs, from the next stage
  unshard,          // UNSHARD: the stage's weights are gathered from where they are fully sharded
  reshard,          // RESHARD: and freed
  reduce_grad,      // REDUCE_GRAD: the gradients, summed over the microbatches, are reduced over the replicas
};
// Number of kinds.
constexpr int kActionKinds = 11;

// F, B, I, W: what takes a rank's time, and all that generators write.
constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::backward_weight; }
constexpr bool is_communication(ActionKind kind) {
  return kind >= ActionKind::send_forward && kind <= ActionKind::recv_backward;
}
// Of a microbatch; the others concern a stage.
constexpr bool has_microbatch(ActionKind kind) { return kind < ActionKind::unshard; }

// One thing that a rank does.
struct Action {
  // What is done, and of which stage.
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int microbatch = -1;  // -1 where the action has none
  friend bool operator==(const Action&, const Action&) = default;
};
// As in PyTorch: stage, kind, microbatch: `0F3`, `1I2`, `0SEND_F3`, `1RECV_F3`, `2UNSHARD`.
DTENSOR_API std::string to_string(const Action& action);
DTENSOR_API std::ostream& operator<<(std::ostream& out, const Action& action);

// What each rank does, in order.
struct DTENSOR_API Schedule {
  std::vector<std::vector<Action>> ranks;  // of each rank of the pipeline, in the order in which it runs them

  // One more than the highest that an action names.
  int stages() const;
  int microbatches() const;
  // Which rank has the stage: that of its first action. Throws where none has.
  int rank_of(int stage) const;
  bool has(ActionKind kind) const;

  // One line a rank, actions separated by blanks; `-` for a rank without any.
  std::string str() const;
  // Reads that back. Separators are commas and blanks, `#` begins a comment, empty lines are skipped. Throws with the
  // line and the word that is no action; whether the actions make a schedule is for check() to say.
  static Schedule parse(std::string_view text);

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// The schedules by name: "gpipe", "1f1b", "interleaved", "bfs" (looped, breadth first), "zb-h1", "zbv", "dualpipev".
// Any number of ranks and of microbatches will do. `chunks` is the number of stages of a rank; 0 is the schedule's own,
// which is 2 for interleaved, bfs, zbv and dualpipev and else 1. Stage s lies on rank s % ranks; for zbv and dualpipev,
// which take 2 chunks and no other number, rank r has stages r and 2 * ranks - 1 - r (a V). Computation only: see
// with_communication.
DTENSOR_API Schedule make_schedule(std::string_view name, int ranks, int microbatches, int chunks = 0);
DTENSOR_API const std::vector<std::string>& schedule_names();

// The forward part, without communication: for evaluation.
DTENSOR_API Schedule forward_only(const Schedule& schedule);

// How sends and receives are put in.
struct CommunicationOptions {
  // How many stages of a rank may be unsharded at once (at least one): beyond it, that is freed which is used again
  // last. With none, there are no UNSHARD and no RESHARD, and the stages gather their weights as they like.
  std::optional<int> unsharded_stages = 1;
  bool reduce_grad = true;
  // For transports whose sends wait for their receives: each receive stands where its rank is when the message is made
  // (were the times of actions those of Costs()), possibly long before its use, and no order of waiting is a deadlock.
  bool rendezvous = false;
};
// Adds to a schedule of computation only what moves data; an UNSHARD, RESHARD or REDUCE_GRAD that is there stays, where
// none is asked for. A send follows what it sends. A receive comes right before what needs it, so that a wait for it
// keeps nothing from running, unless a message that the same rank sent earlier is needed later: that is received first
// (it costs no wait, and messages between two ranks stay in order, for transports without tags). Neighbouring stages on
// one rank need neither. RESHARD and REDUCE_GRAD follow the last use and the last B or W of a stage.
DTENSOR_API Schedule with_communication(const Schedule& schedule, const CommunicationOptions& options = {});

// What a schedule is checked against.
struct ScheduleLimits {
  int stages = 0, microbatches = 0;  // how many there must be; 0: as many as the schedule has
  int live_microbatches = 0;         // how many microbatches' activations a stage may hold at once; 0: any number
  bool forward_only = false;         // the schedule is one of evaluation: F and no gradients
};
// What a check found out.
struct ScheduleReport {
  bool in_order = true;  // messages from one rank to another are received in the order in which they are sent
  // Empty where the schedule also runs when a send waits for its receive, else the cycle of actions that would wait.
  // Buffered sends, which return at once, are what check() demands. Batched: communication with no other action in
  // between starts at once and is then awaited together (as batch_isend_irecv); rendezvous: one at a time (as
  // MPI_Ssend).
  std::string batched, rendezvous;
  std::vector<int> live_activations;  // see there
};
// Proves a schedule: each stage is on one rank; each stage and microbatch has one F and one B, or one I and a W after
// it; what an action needs comes before it; each send has its receive and the other way round, wherever neighbouring
// stages lie on different ranks (a schedule without any communication is taken as one whose results appear where they
// are needed); a stage that is unsharded at all is so whenever it computes and in the end is not; its gradients, if any
// stage's are, are reduced once, after the last; no rank waits for itself. Throws an error that names the two actions
// that conflict, with their ranks.
DTENSOR_API ScheduleReport check(const Schedule& schedule, const ScheduleLimits& limits = {});

// Of each rank of a valid schedule: the most microbatch activations that it holds at once, all its stages together. One
// is held from F to B, or to W where the backward is split: what W needs is held until then.
DTENSOR_API std::vector<int> live_activations(const Schedule& schedule);

// Seconds (or any unit) of one action. A message arrives `communication` after its send, which itself takes no time.
struct DTENSOR_API Costs {
  // In any unit of time.
  double forward = 1, backward = 2, backward_input = 1, backward_weight = 1;
  double communication = 0, unshard = 0, reshard = 0, reduce_grad = 0;
  std::vector<double> stages = {};  // factors of F, B, I and W by stage; empty: 1
  double operator()(const Action& action) const;
};
// Of one action, in any unit of time.
using CostFunction = std::function<double(const Action&)>;

// An action and when it ran.
struct TimedAction {
  // What ran, and from when to when.
  Action action;
  double begin = 0, end = 0;
};
// Of all ranks.
struct Timeline {
  // Of each rank, in order.
  std::vector<std::vector<TimedAction>> ranks;
  double makespan = 0;                // from the first action to the end of the last
  double bubble = 0;                  // the share of ranks x makespan in which nothing is computed
  std::vector<Action> critical_path;  // a chain of actions, each waiting for the one before, as long as the makespan
};
// When a valid schedule's actions run, each as soon as its rank is through with the one before and what it needs is
// there. A receive lasts until its message is there.
DTENSOR_API Timeline simulate(const Schedule& schedule, const CostFunction& cost = Costs());

// One row a rank, one box an action, coloured by kind: of a simulated step, or of one as measured.
DTENSOR_API std::string schedule_svg(const std::vector<std::vector<TimedAction>>& ranks);

}  // namespace dtensor::pipeline

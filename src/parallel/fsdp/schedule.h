// Decides when units are gathered, resharded and reduced. One schedule serves the units of a model on one rank. It
// depends only on the order in which operators use parameters and gradients arrive, which is the same on every rank.
#pragma once

#include <memory>
#include <vector>

#include "parallel/fsdp/gradients/reduction.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

using Unit = FsdpUnit::Impl;

class Schedule {
 public:
  // Makes this the schedule of `unit` and of every unit of its previous schedule.
  static void join(const std::shared_ptr<Schedule>& schedule, Unit& unit);
  void remove_unit(Unit& unit);

  // Called when an operator uses parameter k of `unit`. Returns its gathered local tensor, or an undefined tensor if
  // that does not apply.
  at::Tensor use(Unit& unit, std::size_t k, const DTensor& parameter, const Placements& gathered, at::ScalarType dtype);
  // The forward pass of a call with local semantics begins: gathers the unit, which stays gathered until the call
  // leaves.
  void enter_forward(Unit& unit);
  // That pass has ended. `keep`: backward begins with this unit.
  void leave_forward(Unit& unit, bool keep);
  // Backward has reached the call's module; backward has all gradients of its parameters, or has ended.
  void enter_backward(Unit& unit);
  void leave_backward(Unit& unit);
  // The gradient of parameter k has arrived in this backward pass. Returns whether the unit reduces it.
  bool gradient(Unit& unit, std::size_t k, const DTensor& parameter, const at::Tensor& gradient);
  // Ends the uses of the unit in this phase, and frees the gathered copy unless a call, unshard() or an option keeps
  // it.
  void reshard_if_unused(Unit& unit);
  // Frees the gathered copy, although a call or unshard() keeps it.
  void force_reshard(Unit& unit);
  // Gathers the unit, which stays gathered until unpin().
  void pin(Unit& unit);
  void unpin(Unit& unit);
  // Reduces gradients that passes under NoGradientSync left in .grad.
  void reduce_leftovers(Unit& unit);
  void finish_reductions();

  FsdpStats stats;

 private:
  void add_counts(Schedule& former);
  void begin_use(Unit& unit);
  static void begin_pass(Unit& unit);
  void enter_pass(int pass);
  void leave_calls(int pass);
  bool is_recomputing() const;
  void keep_for_graph(int pass);
  void end_pass(int pass);
  void forget_failed_passes();
  void abandon_passes();
  void discard_pending_gradients(Unit& unit);
  static void forget_expected(Unit& unit);
  static void learn_segments(Unit& unit);
  static void learn_implicit_reshards(Unit& unit);
  void switch_pass_kind(PassKind pass_kind);
  void reshard_finished(const Unit& next);
  void limit_inference();
  bool begins_backward(const Unit& unit, const Unit& next) const;
  bool is_first_in_backward(const Unit& unit) const;
  void keep_for_backward(Unit& unit, const Unit& next);
  void reshard_kept_after_forward(const Unit& next);
  bool is_finished(const Unit& unit) const;
  bool ends_implicitly(const Unit& unit) const;
  void gather(Unit& unit);
  void note_use(Unit& unit, Parameter& p, const DTensor& parameter);
  void prefetch(const Unit& unit);
  bool may_prefetch(const Unit& by, const Unit& next) const;
  void finish_gather(Unit& unit);
  void reduce(Unit& unit, const at::Tensor& arriving = {});
  void add_pending(Parameter& p, at::Tensor gradient);
  void advance_reductions();
  bool add_missing(Unit& unit);
  bool take_leftovers(const Unit& unit, Parameter& p);
  bool take_zeros(const Unit& unit, Parameter& p);
  void count_gathered(std::int64_t bytes);
  void count_unreduced(std::int64_t bytes);

  // Owned by the end callback of a backward pass, and destroyed even if the pass throws and the callback never runs.
  struct PassEnd {
    Schedule& schedule;
    int pass;
    std::vector<at::Tensor> parameters;  // keep the units alive until their gradients have arrived
    ~PassEnd();
  };

  std::vector<Unit*> units_;
  struct Pass {
    int id;
    std::weak_ptr<const void> owner_alive;  // owned by its end callback: expired if the pass threw
    bool makes_graph = false;               // create_graph
  };
  std::vector<Pass> passes_;  // active backward passes
  PassKind pass_kind_ = kForward;
  Unit* current_ = nullptr;                           // the unit that was used last
  Unit* kept_after_forward_ = nullptr;                // finished in forward, kept because backward begins with it
  const Unit* first_used_after_kept_ = nullptr;       // the next unit that forward used after it
  Unit* recomputed_ = nullptr;                        // the last unit of a recomputation in backward
  std::array<std::vector<Unit*>, kPassKinds> order_;  // order of first uses in the last phase of each kind
  std::unique_ptr<UnitReduction> reduce_scattering_, all_reducing_;  // active
  std::vector<Unit*> running_;                                       // used in this phase
};

}  // namespace dtensor::fsdp

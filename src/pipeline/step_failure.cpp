// Failure of a step: a rank whose stage throws runs its remaining actions without computing, and sends the reason
// instead of each message. Ranks that receive it do the same, so every rank reaches the end of its list.
#include "dtensor/comm.h"
#include "internal/action_kinds.h"
#include "pipeline/step.h"

namespace dtensor::pipeline {

// Peer and channel of a send or receive; {-1, -1} for another action.
Step::Route Step::route_of(const Action& action) const {
  const bool receives = action.kind == Action::Kind::recv_forward || action.kind == Action::Kind::recv_backward;
  const bool forward = action.kind == Action::Kind::recv_forward || action.kind == Action::Kind::send_forward;
  if (!is_communication(action.kind)) return {-1, -1};
  const int other = action.stage + (forward != receives ? 1 : -1);
  return {context_.schedule.rank_of(other), channel(receives ? action.stage : other, action.microbatch, forward)};
}

// A CommError is rethrown: ranks have left or wait for each other, so no rank would receive the reason.
void Step::attempt(const Action& action) {
  try {
    run(action);
    if (!trains_) forget(action);
  } catch (const MessageRefused& refused) {
    failure_ = refused.reason;
  } catch (const CommError&) {
    throw;
  } catch (const c10::Error& e) {
    fail(action, e.what_without_backtrace());
  } catch (const std::exception& e) {
    fail(action, e.what());
  }
}

// Called within an exception handler.
void Step::fail(const Action& action, const std::string& why) {
  if (action.kind == Action::Kind::recv_forward || action.kind == Action::Kind::recv_backward) throw;
  thrown_ = std::current_exception();
  failure_ = c10::str("pipeline: in ", to_string(action), ": ", why);
  skip(action);  // sends the failure if the action was to send
}

void Step::skip(const Action& action) {
  const auto [peer, channel] = route_of(action);
  switch (action.kind) {
    case Action::Kind::send_forward:
    case Action::Kind::send_backward:
      return messages_.send_failure(failure_, peer, channel);
    case Action::Kind::recv_forward:
    case Action::Kind::recv_backward:
      try {
        messages_.receive(peer, channel);
      } catch (const MessageRefused&) {  // the failure is known already
      }
      return;
    case Action::Kind::reshard:
      return run(action);
    default:
      return;
  }
}

}  // namespace dtensor::pipeline

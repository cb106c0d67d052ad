// The conformance suite's ranks as threads of this process.
#include "comm/fixture.h"

namespace dtensor::test {

void on_ranks(int ranks, const std::function<void(Communicator)>& body) { run_local(ranks, body); }

}  // namespace dtensor::test

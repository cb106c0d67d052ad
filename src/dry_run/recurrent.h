// Memory of oneDNN's LSTM layers, which have no meta kernels.
#pragma once

#include <vector>

#include "sharding_prop/operators/op_call.h"

namespace dtensor::dry {

// Whether an operator is aten::mkldnn_rnn_layer or its backward.
bool is_recurrent(const OpInfo& info);

// Metadata of its results.
std::vector<OutputMeta> recurrent_outputs(const OpCall& call);

// The most memory that its kernel allocates inside.
std::int64_t recurrent_temporaries(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::dry

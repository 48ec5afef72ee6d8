// A device of PyTorch that is simulated: its memory is the host's, its operators are the CPU's, and its allocator keeps statistics.
// Copies between the host and the device take as long as `set_copy_seconds` says.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <thread>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr size_t kTotal = size_t(1) << 30;
double copy_seconds = 0;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Allocator final : c10::DeviceAllocator {
  c10::CachingDeviceAllocator::DeviceStats stats;

  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return stats; }
  void resetAccumulatedStats(c10::DeviceIndex) override { stats.allocated_bytes[0].reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex) override {
    stats.allocated_bytes[0].reset_peak();
    stats.reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {kTotal - stats.allocated_bytes[0].current, kTotal};
  }
  void changed(void* block, int64_t size) {
    if (size > 0) {
      stats.allocated_bytes[0].increase(size);
      stats.reserved_bytes[0].increase(size);
    } else {
      stats.allocated_bytes[0].decrease(-size);
      stats.reserved_bytes[0].decrease(-size);
    }
    auto bytes = stats.allocated_bytes[0].current;
    c10::reportMemoryUsageToProfiler(block, size, bytes, bytes, c10::Device(kType, 0));
  }
};

Allocator allocator;

struct Block {
  void* data;
  size_t size;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->size) allocator.changed(block->data, -int64_t(block->size));
  std::free(block->data);
  delete block;
}

c10::DataPtr Allocator::allocate(size_t size) {
  size_t rounded = (size + 511) / 512 * 512;  // as on CUDA
  auto* block = new Block{size ? std::malloc(rounded) : nullptr, rounded};
  if (rounded) changed(block->data, int64_t(rounded));
  return {block->data, block, &release, c10::Device(kType, 0)};
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::Device only() const { return c10::Device(kType, 0); }
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return only(); }
  c10::Device getDevice() const override { return only(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, only()); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, only()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return 1e3 * (*static_cast<double*>(second) - *static_cast<double*>(first));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.device() != to.device() && copy_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(copy_seconds));
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor as_strided(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? offset->expect_int() : self.storage_offset());
  return made;
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  auto like = on_host(self).view(C10_AS_INTARRAYREF_SLOW(size));
  return as_strided(
      self, c10::fromIntArrayRefSlow(like.sizes()), c10::fromIntArrayRefSlow(like.strides()), self.storage_offset());
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return on_host(self).item(); }

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  size_t bytes = self.numel() * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    self.storage().set_data_ptr_noswap(allocator.allocate(bytes));
    self.storage().set_nbytes(bytes);
  }
  return self;
}

at::Tensor convolution(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  std::optional<at::Tensor> host_bias;
  if (bias.has_value() && bias->defined()) host_bias = on_host(*bias);
  auto made = at::convolution_symint(
      on_host(x), on_host(weight), host_bias, stride, padding, dilation, transposed, output_padding, groups);
  return made.to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient,
    const at::Tensor& x,
    const at::Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups,
    std::array<bool, 3> wanted) {
  auto channels = gradient.sym_size(1);
  auto [of_x, of_weight, of_bias] = at::convolution_backward_symint(
      on_host(gradient), on_host(x), on_host(weight), c10::SymIntArrayRef(&channels, 1), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  auto there = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(x.device()) : tensor; };
  return {there(of_x), there(of_weight), there(of_bias)};
}

// Runs the operator of the CPU on copies on the host.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize_);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

extern "C" void register_device() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &allocator);
}

extern "C" void set_copy_seconds(double seconds) { copy_seconds = seconds; }

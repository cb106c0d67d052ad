! A Fortran program that owns MPI and uses the library through the module dtensor.  mpirun -n N fortran_host FOLDER
! FOLDER: for a checkpoint. Prints a line on failure and stops with an error.
program fortran_host
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use mpi_f08
  use dtensor
  implicit none

  integer, parameter :: rows = 11, inputs = 3, outputs = 2, steps = 5

  ! A training run: the loss of each step, the gradient of the input and a parameter at the end.
  type run
    real(c_double) :: losses(steps), gradient(rows, inputs), weight(8, inputs)
  end type
  type setup
    type(dtensor_module) :: layer
    type(dtensor_optimizer) :: optimizer
    type(dtensor_tensor) :: x, y
  end type

  type(MPI_Comm) :: host
  type(dtensor_mesh) :: mesh
  character(len=1024) :: folder
  integer :: rank, ranks, provided, number
  ! The program's fields: the library sees sections of them.
  real(c_double), allocatable, target :: field(:, :), goal(:, :), output(:, :)

  call get_command_argument(1, folder)
  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  call MPI_Comm_dup(MPI_COMM_WORLD, host)
  call MPI_Comm_rank(host, rank)
  call MPI_Comm_size(host, ranks)
  call dtensor_mesh_from_mpi(host%mpi_val, [ranks], mesh, names='dp')
  call dtensor_mesh_size(mesh, number)
  call expect(number == ranks, 'number of ranks')
  call check_training()
  call check_host_memory()
  call check_dimensions()
  call check_training_parts()
  call check_checkpoint()
  call check_refusals()
  call dtensor_free(mesh)
  call MPI_Comm_free(host)
  call MPI_Finalize()

contains

  subroutine expect(holds, what)
    logical, intent(in) :: holds
    character(len=*), intent(in) :: what
    if (holds) return
    write (error_unit, '(a, i0, 4a)') 'fortran_host: rank ', rank, ': ', what, '; last error: ', dtensor_last_error()
    error stop 1  ! without MPI_Finalize: mpirun ends the other ranks
  end subroutine

  ! The program's own communication, between calls of the library.
  subroutine host_communicates()
    integer :: total
    call MPI_Allreduce(rank + 1, total, 1, MPI_INTEGER, MPI_SUM, host)
    call expect(total == ranks * (ranks + 1) / 2, 'sum of the program')
  end subroutine

  ! Fields of the rows of a rank among `count` ranks. The library does not see their first and last rows and columns.
  subroutine fill_fields(index, count)
    integer, intent(in) :: index, count
    integer :: chunk, first, own, i, j
    chunk = (rows + count - 1) / count
    first = min(index * chunk, rows)
    own = min(first + chunk, rows) - first
    if (allocated(field)) deallocate (field, goal, output)
    allocate (field(0:own + 1, 0:inputs + 1), goal(own, outputs), output(own, outputs), source=0.0_c_double)
    do i = 1, own
      do j = 1, inputs
        field(i, j) = sin(3.0_c_double * (first + i) + j)
      end do
      do j = 1, outputs
        goal(i, j) = 0.5_c_double * cos(first + i - 2.0_c_double * j)
      end do
    end do
  end subroutine

  subroutine begin(on, index, count, s, shard)
    type(dtensor_mesh), intent(in) :: on
    integer, intent(in) :: index, count
    type(setup), intent(out) :: s
    logical, intent(in) :: shard
    call fill_fields(index, count)
    call dtensor_module_create(on, 'Perceptron', [inputs, 8, 5, outputs], s%layer, activation='gelu', seed=7)
    if (shard) call dtensor_fully_shard(s%layer)
    call dtensor_optimizer_adamw(s%layer, 1e-2_c_double, s%optimizer)
    call dtensor_from_host(on, dtensor_view(field(1:ubound(field, 1) - 1, 1:inputs)), '[S(0)]', s%x)
    call dtensor_from_host(on, dtensor_view(goal), '[S(0)]', s%y)
    call dtensor_set_requires_grad(s%x, .true.)
  end subroutine

  subroutine end_run(s)
    type(setup), intent(inout) :: s
    call dtensor_free(s%x)
    call dtensor_free(s%y)
    call dtensor_free(s%optimizer)
    call dtensor_free(s%layer)
  end subroutine

  real(c_double) function train_step(s) result(value)
    type(setup), intent(in) :: s
    type(dtensor_tensor) :: prediction, loss
    call dtensor_zero_grad(s%optimizer)
    call dtensor_zero_grad(s%x)
    call dtensor_forward(s%layer, s%x, prediction)
    call host_communicates()
    call dtensor_mse_loss(prediction, s%y, loss)
    call dtensor_item(loss, value)
    call dtensor_backward(loss)
    call host_communicates()
    call dtensor_step(s%optimizer)
    call dtensor_free(prediction)
    call dtensor_free(loss)
  end function

  subroutine train(s, r)
    type(setup), intent(in) :: s
    type(run), intent(out), target :: r
    type(dtensor_tensor) :: gradient, weight
    character(len=:), allocatable :: name
    integer :: step
    do step = 1, steps
      r%losses(step) = train_step(s)
    end do
    call dtensor_grad(s%x, gradient)
    call dtensor_copy_full(gradient, dtensor_view(r%gradient))
    call dtensor_parameter_name(s%layer, 1, name)
    call expect(name == '0.weight', 'name of a parameter: ' // name)
    call dtensor_parameter(s%layer, 1, weight)
    call dtensor_copy_full(weight, dtensor_view(r%weight))
    call dtensor_free(gradient)
    call dtensor_free(weight)
  end subroutine

  logical function equal(a, b)
    real(c_double), intent(in) :: a(:, :), b(:, :)
    equal = all(abs(a - b) <= 1e-12_c_double * (1 + abs(b)))
  end function

  ! The training run of all ranks, replicated and fully sharded, equals that of one process with all rows.
  subroutine check_training()
    type(dtensor_mesh) :: alone
    type(setup) :: s
    type(run) :: expected, got
    integer :: layout
    call dtensor_mesh_of_process(alone)
    call begin(alone, 0, 1, s, .false.)
    call train(s, expected)
    call end_run(s)
    call expect(expected%losses(steps) < expected%losses(1), 'the loss decreases')
    do layout = 0, 1
      call begin(mesh, rank, ranks, s, layout == 1)
      call train(s, got)
      call end_run(s)
      call expect(equal(reshape(got%losses, [steps, 1]), reshape(expected%losses, [steps, 1])), 'losses')
      call expect(equal(got%gradient, expected%gradient), 'gradient of the input')
      call expect(equal(got%weight, expected%weight), 'parameter after training')
    end do
    call dtensor_free(alone)
  end subroutine

  ! The tensor is the program's memory, and results are written to it.
  subroutine check_host_memory()
    type(setup) :: s
    type(dtensor_tensor) :: prediction, own
    type(dtensor_array) :: local
    integer(c_int64_t), allocatable :: sizes(:)
    real(c_double), pointer :: values(:)
    character(len=:), allocatable :: placements
    call begin(mesh, rank, ranks, s, .false.)
    call dtensor_local(s%x, local)
    call expect(all(local%sizes(:2) == [size(goal, 1), inputs]), 'local sizes')
    if (size(goal, 1) > 0) call expect(c_associated(local%address, c_loc(field(1, 1))), 'the address of the section')
    call dtensor_sizes(s%x, sizes)
    call dtensor_placements(s%x, placements)
    call expect(all(sizes == [rows, inputs]) .and. placements == '[S(0)]', 'sizes and placements')
    field = field + 1
    call dtensor_increment_version(s%x)
    call dtensor_forward_no_grad(s%layer, s%x, prediction)
    call dtensor_from_host(mesh, dtensor_view(output), '[S(0)]', own)
    call dtensor_copy(own, prediction)
    call dtensor_local(prediction, local)
    if (size(output) > 0) then
      call c_f_pointer(local%address, values, [size(output)])
      call expect(all(output(:, outputs) == values(outputs::outputs)), 'the prediction in the output field')
    end if
    call dtensor_free(own)
    call dtensor_free(prediction)
    call end_run(s)
  end subroutine

  ! Arrays of one, three, four and five dimensions, of 4 bytes and of integers of 1 to 8 bytes, with gaps.
  subroutine check_dimensions()
    real(c_float), target :: cube(2, 3, 4), copy(2, 3, 2 * ranks)
    real(c_double), target :: line(7), doubled(4 * ranks), block(2, 2, 2, 2), all_blocks(2, 2, 2, 2 * ranks)
    integer(c_int64_t), target :: numbers(2, 1, 3, 1, 4), all_numbers(2, 1, 3, 1, 2 * ranks)
    integer(c_int32_t), target :: small(5), all_small(3 * ranks)
    integer(c_int8_t), target :: bytes(3, 4), all_bytes(3, 2 * ranks)
    integer(c_int16_t), target :: words(5), all_words(3 * ranks)
    type(dtensor_tensor) :: tensor
    integer :: i
    numbers = reshape([(int(100 * rank + i, c_int64_t), i=1, 24)], shape(numbers))
    small = [(10 * rank + i, i=1, 5)]
    bytes = reshape([(int(100 - 30 * rank - i, c_int8_t), i=1, 12)], shape(bytes))
    words = [(int(30000 - 1000 * rank - i, c_int16_t), i=1, 5)]
    call random_number(cube)
    call random_number(line)
    call random_number(block)
    call dtensor_from_host(mesh, dtensor_view(cube(:, :, 1:3:2)), '[S(2)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(copy))
    call expect(all(copy(:, :, 2 * rank + 1:2 * rank + 2) == cube(:, :, 1:3:2)), 'a section of three dimensions')
    call dtensor_free(tensor)
    call dtensor_from_host(mesh, dtensor_view(line(1::2)), '[S(0)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(doubled))
    call expect(all(doubled(4 * rank + 1:4 * rank + 4) == line(1::2)), 'a section of one dimension')
    call dtensor_free(tensor)
    call dtensor_from_host(mesh, dtensor_view(block), '[S(3)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(all_blocks))
    call expect(all(all_blocks(:, :, :, 2 * rank + 1:2 * rank + 2) == block), 'four dimensions')
    call dtensor_free(tensor)
    call dtensor_from_host(mesh, dtensor_view(numbers(:, :, :, :, 2:4:2)), '[S(4)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(all_numbers))
    call expect(all(all_numbers(:, :, :, :, 2 * rank + 1:2 * rank + 2) == numbers(:, :, :, :, 2:4:2)), 'five dimensions')
    call dtensor_free(tensor)
    call dtensor_from_host(mesh, dtensor_view(small(1::2)), '[S(0)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(all_small))
    call expect(all(all_small(3 * rank + 1:3 * rank + 3) == small(1::2)), 'integers of 4 bytes')
    call dtensor_free(tensor)
    call dtensor_from_host(mesh, dtensor_view(bytes(:, 1::2)), '[S(1)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(all_bytes))
    call expect(all(all_bytes(:, 2 * rank + 1:2 * rank + 2) == bytes(:, 1::2)), 'integers of 1 byte')
    call dtensor_free(tensor)
    call dtensor_from_host(mesh, dtensor_view(words(1::2)), '[S(0)]', tensor)
    call dtensor_copy_full(tensor, dtensor_view(all_words))
    call expect(all(all_words(3 * rank + 1:3 * rank + 3) == words(1::2)), 'integers of 2 bytes')
    call dtensor_free(tensor)
  end subroutine

  ! The losses, clipping, lists of one tensor, options of optimizers, and the mode of a layer.
  subroutine check_training_parts()
    real(c_double), target :: scores(2, 3), zeros(2, 3)
    integer(c_int64_t), target :: classes(2)
    type(dtensor_module) :: layer
    type(dtensor_optimizer) :: sgd
    type(dtensor_tensor) :: x(1), y(1), zero, labels, loss
    real(c_double) :: value, before
    integer :: status
    scores = 1
    zeros = 0
    classes = [0, 2]
    call dtensor_from_host(mesh, dtensor_view(scores), '[S(0)]', x(1))
    call dtensor_from_host(mesh, dtensor_view(zeros), '[S(0)]', zero)
    call dtensor_from_host(mesh, dtensor_view(classes), '[S(0)]', labels)
    call dtensor_l1_loss(x(1), zero, loss)
    call dtensor_item(loss, value)
    call expect(abs(value - 1) < 1e-12_c_double, 'the L1 loss')
    call dtensor_free(loss)
    call dtensor_cross_entropy_loss(x(1), labels, loss)
    call dtensor_item(loss, value)
    call expect(abs(value - log(3.0_c_double)) < 1e-12_c_double, 'the cross entropy')
    call dtensor_free(loss)
    call dtensor_module_create(mesh, 'Linear', [3, 3], layer)
    call dtensor_train(layer, .false.)
    call dtensor_forward(layer, x, y)
    call dtensor_l1_loss(y(1), zero, loss)
    call dtensor_backward(loss)
    call dtensor_clip_grad_norm(layer, 1e-3_c_double, before)
    call dtensor_clip_grad_norm(layer, 1e-3_c_double, value)
    call expect(before > 1e-2_c_double .and. abs(value - 1e-3_c_double) < 1e-6_c_double, 'the clipped norm')
    call dtensor_optimizer_sgd(layer, 0.1_c_double, sgd, momentum=0.9_c_double)
    call dtensor_set_option(sgd, 'nesterov', 1.0_c_double)
    call dtensor_set_option(sgd, 'amsgrad', 1.0_c_double, status)
    call refused(status, "got 'amsgrad'")
    call dtensor_free(sgd)
    call dtensor_free(loss)
    call dtensor_free(y(1))
    call dtensor_free(x(1))
    call dtensor_free(zero)
    call dtensor_free(labels)
    call dtensor_free(layer)
  end subroutine

  subroutine check_checkpoint()
    type(setup) :: s, t
    integer :: i
    integer(c_int64_t) :: step
    real(c_double) :: next
    character(len=:), allocatable :: path
    path = trim(folder) // '/fortran_checkpoint_' // char(iachar('0') + ranks)
    call begin(mesh, rank, ranks, s, .true.)
    do i = 1, 3
      next = train_step(s)
    end do
    call dtensor_checkpoint_save(path, s%layer, 3_c_int64_t, s%optimizer)
    next = train_step(s)
    call end_run(s)
    call begin(mesh, rank, ranks, t, .false.)  ! another layout
    call dtensor_checkpoint_load(path, t%layer, step, t%optimizer)
    call expect(step == 3, 'the stored step')
    call expect(abs(train_step(t) - next) < 1e-12_c_double, 'the loss after a checkpoint')
    call end_run(t)
  end subroutine

  subroutine refused(status, part)
    integer, intent(in) :: status
    character(len=*), intent(in) :: part
    call expect(status == dtensor_invalid_argument, 'the status of: ' // part)
    call expect(index(dtensor_last_error(), part) > 0, 'expected: ' // part)
  end subroutine

  ! Invalid arguments on one rank are one error on all ranks, and the ranks continue.
  subroutine check_refusals()
    type(dtensor_tensor) :: x, y
    type(dtensor_module) :: layer
    type(dtensor_array) :: array
    real(c_double), target :: values(2, 3)
    integer :: status
    values = 0
    call dtensor_set_timeout(-1.0_c_double, status)
    call refused(status, 'expected a timeout of more than 0 seconds')
    call dtensor_mesh_from_mpi(int(host%mpi_val, c_int64_t), [ranks + 1], mesh, status=status)
    call refused(status, 'the size of the communicator')
    array = dtensor_view(values)
    if (rank == ranks - 1) array%address = c_null_ptr
    call dtensor_from_host(mesh, array, '[S(0)]', x, status)
    call refused(status, 'expected the address of 6 elements')
    call dtensor_from_host(mesh, dtensor_view(values), '[S(2)]', x, status)
    call refused(status, 'dimension')
    call dtensor_module_create(mesh, 'Linear', [5, 2], layer, status=status)
    call expect(status == dtensor_ok, 'a module')
    call dtensor_from_host(mesh, dtensor_view(values), '[S(0)]', x)
    call dtensor_forward(layer, x, y, status)
    call refused(status, 'cannot be multiplied')
    call host_communicates()
    call dtensor_free(x)
    call dtensor_free(layer)
  end subroutine
end program

! Convolutions, second derivatives and graphs from Fortran, on all ranks of a program that owns MPI.
! mpirun -n N fortran_layers.  Prints a line on failure and stops with an error.
program fortran_layers
  use, intrinsic :: iso_c_binding, only: c_associated
  use, intrinsic :: iso_fortran_env, only: error_unit
  use mpi_f08
  use dtensor
  implicit none

  integer, parameter :: rows = 11, width = 5, points = 9
  type(dtensor_mesh) :: mesh, alone, gpus
  integer :: rank, ranks, status

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call dtensor_mesh_from_mpi(MPI_COMM_WORLD%mpi_val, [ranks], mesh)
  call dtensor_mesh_of_process(alone)
  call check_convolution()
  call check_derivatives()
  call check_graph()
  call check_guide()
  call dtensor_mesh_on_gpu(mesh, gpus, status=status)
  if (status /= dtensor_ok) call expect(index(dtensor_last_error(), 'nccl_communicator: ') > 0, 'the reason without GPUs')
  call check_device()
  call dtensor_free(gpus)
  call dtensor_free(alone)
  call dtensor_free(mesh)
  call MPI_Finalize()

contains

  subroutine expect(holds, what)
    logical, intent(in) :: holds
    character(len=*), intent(in) :: what
    if (holds) return
    write (error_unit, '(a, i0, 4a)') 'fortran_layers: rank ', rank, ': ', what, '; last error: ', dtensor_last_error()
    error stop 1  ! without MPI_Finalize: mpirun ends the other ranks
  end subroutine

  ! A mesh of a device by name, and a copy to it and back. The host stands for a device that is always there.
  subroutine check_device()
    type(dtensor_mesh) :: device
    type(dtensor_tensor) :: x, there, back
    real(8), target :: field(2, 3), copy(2 * ranks, 3)
    field = rank + 1
    call dtensor_mesh_on_device(mesh, 'no_device', device, status)
    call expect(index(dtensor_last_error(), 'no_device') > 0, 'the name of an unknown device')
    call dtensor_mesh_on_device(mesh, 'cpu', device)
    call dtensor_from_host(mesh, dtensor_view(field), '[S(0)]', x)
    call dtensor_to_mesh(x, device, there)
    call dtensor_to_mesh(there, mesh, back)
    call dtensor_copy_full(back, dtensor_view(copy))
    call expect(equal(copy(2 * rank + 1, :), field(1, :)), 'a copy to a device and back')
    call dtensor_free(x)
    call dtensor_free(there)
    call dtensor_free(back)
    call dtensor_free(device)
  end subroutine

  logical function equal(a, b)
    real(8), intent(in) :: a(:), b(:)
    equal = all(abs(a - b) <= 1d-11 * (1 + abs(b)))
  end function

  ! The indices of a rank among `count` ranks: chunks of ceil(n / count).
  subroutine chunk_of(n, index, count, first, last)
    integer, intent(in) :: n, index, count
    integer, intent(out) :: first, last
    integer :: chunk
    chunk = (n + count - 1) / count
    first = min(index * chunk, n) + 1
    last = min((index + 1) * chunk, n)
  end subroutine

  ! The result of two convolutions of an image whose rows are split, and the gradient of the image.
  subroutine convolve(on, index, count, y_all, gradient_all)
    type(dtensor_mesh), intent(in) :: on
    integer, intent(in) :: index, count
    real(8), intent(out), target :: y_all(1, 3, rows, width), gradient_all(1, 2, rows, width)
    real(8), allocatable, target :: image(:, :, :, :)
    type(dtensor_module) :: layer(2)
    type(dtensor_tensor) :: x, h, a, y, square, loss, gradient
    integer :: first, last, i, j
    call chunk_of(rows, index, count, first, last)
    allocate (image(1, 2, first:last, width))
    do j = 1, width
      do i = first, last
        image(1, :, i, j) = [sin(1d0 * i + 3 * j), cos(2d0 * i - j)]
      end do
    end do
    call dtensor_module_create(on, 'Conv2d', [2, 4, 3, 1, 1], layer(1), seed=3)
    call dtensor_module_create(on, 'Conv2d', [4, 3, 5, 1, 2], layer(2), seed=4)
    call dtensor_from_host(on, dtensor_view(image), '[S(2)]', x)
    call dtensor_set_requires_grad(x, .true.)
    call dtensor_forward(layer(1), x, h)
    call dtensor_compute('tanh', [h], a)
    call dtensor_forward(layer(2), a, y)
    call dtensor_compute('mul', [y, y], square)
    call dtensor_compute('sum', [square], loss)
    call dtensor_backward(loss)
    call dtensor_grad(x, gradient)
    call dtensor_copy_full(y, dtensor_view(y_all))
    call dtensor_copy_full(gradient, dtensor_view(gradient_all))
    call free_all([x, h, a, y, square, loss, gradient])
    call dtensor_free(layer(1))
    call dtensor_free(layer(2))
  end subroutine

  subroutine free_all(tensors)
    type(dtensor_tensor), intent(in) :: tensors(:)
    type(dtensor_tensor) :: tensor
    integer :: i
    do i = 1, size(tensors)
      tensor = tensors(i)
      call dtensor_free(tensor)
    end do
  end subroutine

  subroutine check_convolution()
    real(8) :: y(1, 3, rows, width), gradient(1, 2, rows, width), y_alone(1, 3, rows, width), &
               gradient_alone(1, 2, rows, width)
    call convolve(alone, 0, 1, y_alone, gradient_alone)
    call convolve(mesh, rank, ranks, y, gradient)
    call expect(equal([y], [y_alone]), 'a convolution')
    call expect(equal([gradient], [gradient_alone]), 'the gradient of a convolution')
  end subroutine

  ! The derivatives of sin(x^2) against their formulas.
  subroutine check_derivatives()
    real(8), target :: x_own(points), all_first(points), all_second(points)
    real(8) :: a(points)
    type(dtensor_tensor) :: x, square, y, zero, one, first(1), second(1), wrong(2)
    integer :: i, begin, last
    a = [(0.3d0 + 0.2d0 * i, i=1, points)]
    call chunk_of(points, rank, ranks, begin, last)
    x_own(:last - begin + 1) = a(begin:last)
    call dtensor_from_host(mesh, dtensor_view(x_own(:last - begin + 1)), '[S(0)]', x)
    call dtensor_set_requires_grad(x, .true.)
    call dtensor_compute('mul', [x, x], square)
    call dtensor_compute('sin', [square], y)
    call dtensor_compute('sub', [x, x], zero)
    call dtensor_compute('exp', [zero], one)
    call dtensor_autograd_grad(y, [x], first, gradient=one, create_graph=.true.)
    call dtensor_autograd_grad(first(1), [x], second, gradient=one)
    call dtensor_copy_full(first(1), dtensor_view(all_first))
    call dtensor_copy_full(second(1), dtensor_view(all_second))
    call expect(equal(all_first, 2 * a * cos(a**2)), 'a first derivative')
    call expect(equal(all_second, 2 * cos(a**2) - 4 * a**2 * sin(a**2)), 'a second derivative')
    call dtensor_autograd_grad(y, [x], wrong, gradient=one, status=status)
    call expect(status == dtensor_invalid_argument, 'as many derivatives as tensors')
    call free_all([x, square, y, zero, one, first, second])
  end subroutine

  ! A ring whose nodes receive from both neighbors: the sum of two neighbors, and its gradient.
  subroutine check_graph()
    integer, parameter :: nodes = 8
    real(8), target :: own(nodes), sums(nodes), gradients(nodes)
    integer :: counts(ranks), each, ghosts, i, next, before, sends(2), ends(2 * nodes), starts(2 * nodes)
    type(dtensor_graph) :: graph
    type(dtensor_tensor) :: x, h, messages, y, loss, gradient
    each = nodes / ranks
    counts = 0
    next = modulo(rank + 1, ranks) + 1
    before = modulo(rank - 1, ranks) + 1
    counts(next) = counts(next) + 1
    counts(before) = counts(before) + 1
    ! Ghosts are ordered by rank: row each + 1 is from the lower one of the two neighbors.
    sends = [1, each]
    if (ranks > 2 .and. next < before) sends = [each, 1]
    do i = 1, each
      own(i) = rank * each + i
      ends(2 * i - 1:2 * i) = i
      starts(2 * i - 1:2 * i) = [i - 1, i + 1]
    end do
    starts(1) = each + merge(2, 1, ranks <= 2 .or. before > next)
    starts(2 * each) = each + merge(1, 2, ranks <= 2 .or. before > next)
    call dtensor_graph_create(mesh, each, counts, sends, starts(:2 * each), ends(:2 * each), graph)
    call dtensor_graph_ghosts(graph, ghosts)
    call expect(ghosts == 2, 'number of ghosts')
    call dtensor_from_host(mesh, dtensor_view(own(:each)), '[S(0)]', x)
    call dtensor_set_requires_grad(x, .true.)
    call dtensor_graph_exchange(graph, x, h)
    call dtensor_graph_gather_source(graph, h, messages)
    call dtensor_graph_scatter(graph, messages, y)
    call dtensor_copy_full(y, dtensor_view(sums))
    call expect(equal(sums, [(real(modulo(i - 2, nodes) + modulo(i, nodes) + 2, 8), i=1, nodes)]), 'sums of neighbors')
    call dtensor_compute('sum', [y], loss)
    call dtensor_backward(loss)
    call dtensor_grad(x, gradient)
    call dtensor_copy_full(gradient, dtensor_view(gradients))
    call expect(equal(gradients, [(2d0, i=1, nodes)]), 'the gradient of a graph')
    call dtensor_graph_create(mesh, each, counts, sends, starts(:2 * each), ends(:1), graph, status)
    call expect(status == dtensor_invalid_argument, 'lists of equal lengths')
    call free_all([x, h, messages, y, loss, gradient])
    call dtensor_free(graph)
  end subroutine

  ! The fragments of docs/guide/c_fortran.md, as printed there (tests/guide/claimed_blocks.py compares them). The residual of
  ! a network on a mesh is that of one process.
  real(8) function residual_loss(on, index, count) result(value)
    type(dtensor_mesh), intent(in) :: on
    integer, intent(in) :: index, count
    real(8), target :: x_own(points, 1), ones(points, 1)
    type(dtensor_module) :: layers
    type(dtensor_tensor) :: x, one, zero, u, du(1), ddu(1), square, residual, loss, gradient
    integer :: i, first, last, own
    call chunk_of(points, index, count, first, last)
    own = last - first + 1
    x_own(:own, 1) = [(0.3d0 + 0.2d0 * i, i=first, last)]
    ones = 1
    call dtensor_module_create(on, 'Perceptron', [1, 8, 1], layers, activation='tanh', seed=5)
    call dtensor_from_host(on, dtensor_view(x_own(:own, :)), '[S(0)]', x)
    call dtensor_from_host(on, dtensor_view(ones(:own, :)), '[S(0)]', one)
    call dtensor_compute('sub', [x, x], zero)
    call dtensor_set_requires_grad(x, .true.)
    call dtensor_forward(layers, x, u)
    call dtensor_autograd_grad(u, [x], du, gradient=one, create_graph=.true.)
    call dtensor_autograd_grad(du(1), [x], ddu, gradient=one, create_graph=.true.)
    call dtensor_compute('mul', [u, u], square)
    call dtensor_compute('add', [ddu(1), square], residual)
    call dtensor_mse_loss(residual, zero, loss)
    call dtensor_backward(loss)
    call dtensor_item(loss, value)
    call dtensor_grad(x, gradient)
    call expect(c_associated(gradient%handle), 'the gradient of a residual')
    call free_all([x, one, zero, u, du, ddu, square, residual, loss, gradient])
    call dtensor_free(layers)
  end function

  ! A layer on a graph without edges between ranks: each node receives from itself.
  subroutine check_graph_layer()
    integer, parameter :: nodes = 3
    real(8), target :: features(nodes, 2), result(nodes * ranks, 4)
    integer :: counts(ranks), none(0), self(nodes), i
    type(dtensor_module) :: layers
    type(dtensor_graph) :: graph
    type(dtensor_tensor) :: x, h, from, to, ends, messages, y
    counts = 0
    self = [(i, i=1, nodes)]
    features = reshape([(real(i, 8), i=1, 2 * nodes)], shape(features))
    call dtensor_module_create(mesh, 'LayerNorm', [4], layers)
    call dtensor_graph_create(mesh, nodes, counts, none, self, self, graph)
    call dtensor_from_host(mesh, dtensor_view(features), '[S(0)]', x)
    call dtensor_graph_exchange(graph, x, h)
    call dtensor_graph_gather_source(graph, h, from)
    call dtensor_graph_gather_target(graph, h, to)
    call dtensor_compute('cat', [from, to], ends)
    call dtensor_forward(layers, ends, messages)
    call dtensor_graph_scatter(graph, messages, y)
    call dtensor_copy_full(y, dtensor_view(result))
    call expect(equal(result(:, 1), -result(:, 2)) .and. equal(result(:, 1), result(:, 3)), 'a layer on a graph')
    call free_all([x, h, from, to, ends, messages, y])
    call dtensor_free(graph)
    call dtensor_free(layers)
  end subroutine

  subroutine check_guide()
    real(8) :: value, expected, read_value
    integer :: log, step, read_step
    expected = residual_loss(alone, 0, 1)
    value = residual_loss(mesh, rank, ranks)
    call expect(equal([value], [expected]) .and. value > 0, 'the residual of an equation')
    call check_graph_layer()
    if (rank /= 0) return
    step = 3
    open (newunit=log, file='training.csv')
    write (log, '(a)') 'step,loss'
    write (log, '(i0, ",", es14.6)') step, value
    flush (log)
    rewind (log)
    read (log, *)
    read (log, *) read_step, read_value
    call expect(read_step == step .and. abs(read_value - value) < 1d-5 * value, 'a log')
    close (log, status='delete')
  end subroutine
end program

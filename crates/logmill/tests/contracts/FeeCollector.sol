// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

interface IToken {
    function transfer(address to, uint256 value) external returns (bool);
    function transferFrom(address from, address to, uint256 value) external returns (bool);
}

/// Collects fees for integrators and for the protocol, and pays them out. The zero address is the native asset.
contract FeeCollector {
    address public immutable owner = msg.sender;
    /// By integrator, then by token.
    mapping(address => mapping(address => uint256)) public getTokenBalance;
    mapping(address => uint256) public getLifiTokenBalance;

    event FeesCollected(
        address indexed _token, address indexed _integrator, uint256 _integratorFee, uint256 _lifiFee
    );
    event FeesWithdrawn(address indexed _token, address indexed _to, uint256 _amount);
    event LiFiFeesWithdrawn(address indexed _token, address indexed _to, uint256 _amount);

    function collectTokenFees(address token, uint256 integratorFee, uint256 lifiFee, address integrator) external {
        IToken(token).transferFrom(msg.sender, address(this), integratorFee + lifiFee);
        collect(token, integrator, integratorFee, lifiFee);
    }

    function collectNativeFees(uint256 integratorFee, uint256 lifiFee, address integrator) external payable {
        require(msg.value >= integratorFee + lifiFee, "not enough");
        collect(address(0), integrator, integratorFee, lifiFee);
        uint256 rest = msg.value - integratorFee - lifiFee;
        if (rest > 0) pay(address(0), msg.sender, rest);
    }

    function withdrawIntegratorFees(address token) external {
        uint256 amount = getTokenBalance[msg.sender][token];
        if (amount == 0) return;
        getTokenBalance[msg.sender][token] = 0;
        pay(token, msg.sender, amount);
        emit FeesWithdrawn(token, msg.sender, amount);
    }

    function withdrawLifiFees(address token) external {
        require(msg.sender == owner, "not the owner");
        uint256 amount = getLifiTokenBalance[token];
        if (amount == 0) return;
        getLifiTokenBalance[token] = 0;
        pay(token, msg.sender, amount);
        emit LiFiFeesWithdrawn(token, msg.sender, amount);
    }

    /// `count` fees of `integrators` integrators, numbered from 1, in tokens and in the native asset, as `seed` draws
    /// them. Nothing is paid, so nothing of it can be withdrawn: this is about logs.
    function scatter(uint256 count, uint256 integrators, uint256 seed) external {
        for (uint256 i = 0; i < count; i++) {
            uint256 r = uint256(keccak256(abi.encode(seed, i)));
            address token = address(uint160((r >> 8) % 4));
            address integrator = address(uint160(1 + (r >> 40) % integrators));
            collect(token, integrator, (r >> 72) % 1 ether, (r >> 136) % 1 ether);
        }
    }

    function collect(address token, address integrator, uint256 integratorFee, uint256 lifiFee) private {
        getTokenBalance[integrator][token] += integratorFee;
        getLifiTokenBalance[token] += lifiFee;
        emit FeesCollected(token, integrator, integratorFee, lifiFee);
    }

    function pay(address token, address to, uint256 amount) private {
        if (token != address(0)) {
            IToken(token).transfer(to, amount);
            return;
        }
        (bool paid,) = to.call{value: amount}("");
        require(paid, "not paid");
    }
}
